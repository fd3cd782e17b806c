"""Become a node's container: private /opt/ml, /etc/hosts and host name. Standard library only.

    python -I -S namespace.py ROOT HOST HOSTS_FILE PROGRAM [ARG...]
    python -I -S namespace.py --probe

Run by path in a separate process, by any Python from 3.10 on: it replaces itself by PROGRAM, whose
parent is then the process that started this one. The machine stays unchanged: all mounts are in a
namespace that ends with the process. Exit code 125 and one line on stderr if that is impossible.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import sys
import tempfile

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000  # CLONE_NEW... of sched.h
MS_BIND = 1 << 12
MS_PRIVATE = 1 << 18
MS_REC = 1 << 14  # MS_... of sys/mount.h
TREE = "/opt/ml"
INPUTS = "input/data"
CHANGES = "changed-inputs"
"""Folder beside ROOT for what the program changes in its inputs."""
HOSTS = "/etc/hosts"
CANNOT = 125
USAGE = "usage: namespace.py ROOT HOST HOSTS_FILE PROGRAM [ARG...] | namespace.py --probe"


def main(argv: list[str]) -> int:
    """Enter and become the program. Return an exit code only for a failure or the probe."""
    if argv == ["--probe"]:
        return _probe()
    if len(argv) < 4:
        print(USAGE, file=sys.stderr)
        return CANNOT

    root, host, hosts_file, *program = argv
    try:
        env = _given_environment()
        enter(root, host, hosts_file)
        # Python ignores these two signals, and the program would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        _exec(program, env)
    except OSError as error:
        print(f"cannot enter the container {host!r}: {error}", file=sys.stderr)

    return CANNOT


def enter(root: str, host: str, hosts_file: str) -> None:
    """Give this process `root` at /opt/ml, `hosts_file` at /etc/hosts, and the host name.

    Raise OSError if that is impossible.
    """
    start_folder = os.getcwd()
    root = os.path.abspath(root)
    hosts_file = os.path.abspath(hosts_file)
    unshare()
    mount("none", "/", MS_PRIVATE | MS_REC)  # later mounts stay out of the machine's own
    if not os.path.isdir(TREE):
        _add_mount_point()

    mount(hosts_file, HOSTS, MS_BIND)
    mount(root, TREE, MS_BIND | MS_REC)
    _cover_inputs(root)
    socket.sethostname(host)
    os.chdir(start_folder)  # by its path: the folder may lie behind another mount now


def _cover_inputs(root: str) -> None:
    """Let the program change its linked inputs, as in the cloud, but not this machine's files."""
    changes = os.path.join(os.path.dirname(root), CHANGES)
    shutil.rmtree(changes, ignore_errors=True)  # of an earlier start
    folder = os.path.join(TREE, INPUTS)
    names = []
    if os.path.isdir(folder):
        names = os.listdir(folder)

    root = os.path.realpath(root)

    for name in names:
        link = os.path.join(folder, name)
        place = os.path.realpath(link)
        has_root = os.path.commonpath((place, root)) == place  # the program must write there
        if os.path.islink(link) and os.path.isdir(place) and not has_root:
            _cover(place, os.path.join(changes, name))


def _cover(place: str, changes: str) -> None:
    """Mount a folder over itself; changes go to another one. Does nothing if that is impossible."""
    upper = os.path.join(changes, "upper")
    work = os.path.join(changes, "work")
    os.makedirs(upper)
    os.makedirs(work)
    files = [os.open(path, os.O_PATH) for path in (place, upper, work)]
    # By number: colons and commas of a path would be a part of the options.
    paths = [f"/proc/self/fd/{number}" for number in files]
    options = f"lowerdir={paths[0]},upperdir={paths[1]},workdir={paths[2]},userxattr"

    try:
        mount("overlay", place, kind="overlay", options=options)
        os.chmod(os.path.join(work, "work"), 0o700)  # the kernel's 0 keeps others from removing it
    except OSError:  # for example a run folder on NFS, which cannot have the changes
        pass
    finally:
        for number in files:
            os.close(number)


def unshare() -> None:
    """Create namespaces for mounts and the host name; without privileges, in a user namespace."""
    uid = os.geteuid()
    gid = os.getegid()
    try:
        _call("unshare", CLONE_NEWNS | CLONE_NEWUTS)
    except PermissionError:
        _call("unshare", CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWUTS)
        _write("/proc/self/setgroups", "deny")  # without it gid_map cannot be written
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")


def _add_mount_point() -> None:
    """Mount an /opt with the machine's content and a folder /opt/ml."""
    parent, tree = os.path.split(TREE)
    os.chdir(parent)  # relative paths still reach the old folder
    names = [name for name in os.listdir(".") if name != tree]
    mount("tmpfs", parent, kind="tmpfs", options="mode=0755")

    for name in names:
        copy = os.path.join(parent, name)
        if os.path.islink(name):
            os.symlink(os.readlink(name), copy)
            continue
        if os.path.isdir(name):
            os.mkdir(copy)
        else:
            os.close(os.open(copy, os.O_CREAT | os.O_EXCL))
        mount(name, copy, MS_BIND | MS_REC)

    os.mkdir(TREE)


def _exec(program: list[str], env: dict[bytes, bytes]) -> None:
    try:
        os.execvpe(program[0], program, env)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), program[0]) from None


def _given_environment() -> dict[bytes, bytes]:
    """Return the environment at the start of the process: Python may change LC_CTYPE."""
    with open("/proc/self/environ", "rb") as file:
        entries = [entry.partition(b"=") for entry in file.read().split(b"\0")]
    return {name: value for name, _, value in entries if name}


def _probe() -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="cloudtrain-probe-") as root:
            hosts = os.path.join(root, "hosts")
            _write(hosts, "127.0.0.1 localhost\n")
            enter(root, "cloudtrain-probe", hosts)
    except (OSError, AttributeError) as error:  # AttributeError: not Linux
        print(f"no private mounts here: {error}", file=sys.stderr)
        return 1

    return 0


def mount(source: str, target: str, flags: int = 0, kind: str = "none", options: str = "") -> None:
    """Call mount(2). Raise OSError if the kernel refuses."""
    words = [os.fsencode(word) for word in (source, target, kind)]
    _call("mount", *words, ctypes.c_ulong(flags), os.fsencode(options), paths=(source, target))


def _call(name: str, *arguments: object, paths: tuple[str, ...] = ()) -> None:
    """Call a function of the C library that this Python lacks: mount, and unshare before 3.12."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        call = " ".join([name, *map(repr, paths)])
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
