"""One node's container: the environment of its program, and its view of the machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudtrain.planning.sagemaker import TrainingJob, training_job
from cloudtrain.providers.rehearsal import container as emulator
from cloudtrain.providers.rehearsal import namespace as enter
from tests.support.limits import HANG_SECONDS
from tests.support.samples import write

ENTER = Path(enter.__file__)
PYTHON = (sys.executable, "-I", "-S")
NOBODY = 65534


def a_job(*channels: str, nodes: int = 2) -> TrainingJob:
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data/"}}
    return training_job(
        {
            "TrainingJobName": "dog-k2x9",
            "AlgorithmSpecification": {
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["train"],
            },
            "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": nodes},
            "OutputDataConfig": {"S3OutputPath": "s3://bucket/runs"},
            "HyperParameters": {"epochs": "3"},
            "Environment": {"COLOUR": "blue"},
            "InputDataConfig": [{"ChannelName": name, "DataSource": source} for name in channels],
        },
        interface="lo",
    )


def snapshot() -> tuple[list[str], bytes, str, list[str]]:
    """Return the state of this machine that entering must not change."""
    mounts = [
        line
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if " /opt" in line or " /etc" in line
    ]
    return names(Path("/opt")), Path("/etc/hosts").read_bytes(), socket.gethostname(), mounts


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run(
    *argv: str, cwd: Path | None = None, env: dict[str, str] | None = None, user: int | None = None
) -> subprocess.CompletedProcess[str]:
    """`user`: become this one, in the group of the same number alone."""
    groups = None if user is None else list[str | int]()
    return subprocess.run(
        argv,
        cwd=cwd,
        env=env,
        user=user,
        group=user,
        extra_groups=groups,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


def python(code: str, *args: str) -> list[str]:
    return [*PYTHON, "-c", code, *args]


@dataclass(frozen=True)
class Room:
    """A tree and a hosts file, and programs run in there."""

    root: Path
    hosts: Path

    def argv(self, *program: str) -> list[str]:
        return [*PYTHON, str(ENTER), str(self.root), "algo-2", str(self.hosts), *program]

    def run(self, *program: str) -> subprocess.CompletedProcess[str]:
        return run(*self.argv(*program))


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    if not emulator.has_namespaces():
        pytest.skip(run(*PYTHON, str(ENTER), "--probe").stderr.strip())
    write(tmp_path, {"ml/model/weights": "1", "ml/mark": "here"})
    hosts = tmp_path / "hosts"
    hosts.write_text(emulator.hosts_text(("algo-1", "algo-2"), ("127.0.0.101", "127.0.0.102")))
    before = snapshot()
    yield Room(tmp_path / "ml", hosts)
    assert snapshot() == before


# Environment of a program in the container


def test_a_program_finds_its_tree_its_name_and_its_peers(room: Room) -> None:
    code = """if True:
    import json, os, socket
    open("/opt/ml/model/more", "w").write("2")
    print(json.dumps({
        "tree": sorted(os.listdir("/opt/ml")), "opt": sorted(os.listdir("/opt")), "name": socket.gethostname(),
        "peers": [socket.gethostbyname(name) for name in ("algo-1", "algo-2", "localhost")],
        "pid": os.getpid(), "parent": os.getppid(), "here": os.getcwd(), "user": os.getuid(), "group": os.getgid(),
    }))"""
    with subprocess.Popen(
        room.argv(*python(code)), stdout=subprocess.PIPE, cwd=room.root
    ) as process:
        assert process.stdout is not None
        document = json.loads(process.stdout.read())
    assert process.returncode == 0
    assert document == {
        "tree": ["mark", "model"],
        "opt": sorted({*names(Path("/opt")), "ml"}),
        "name": "algo-2",
        "peers": ["127.0.0.101", "127.0.0.102", "127.0.0.1"],
        "pid": process.pid,
        "parent": os.getpid(),
        "here": str(room.root),
        "user": os.getuid(),
        "group": os.getgid(),
    }
    assert (room.root / "model" / "more").read_text() == "2"


def test_arguments_variables_and_input_arrive_as_they_were_given(room: Room) -> None:
    odd = [
        "",
        " ",
        "it's",
        '"',
        "$HOME `id` $(id)",
        "two\nlines\n",
        "*",
        "\\",
        "-c",
        "--probe",
        "grün",
        "\udcff",
    ]
    env = {
        "PATH": os.defpath,
        "ODD": "it's\n$HOME",
        "PYTHONPATH": "/nowhere",
        "PYTHONHOME": "/nowhere",
    }
    code = "import sys; sys.stdout.buffer.write(open('/proc/self/cmdline', 'rb').read())"
    output = subprocess.run(
        room.argv(*python(code, *odd)),
        env=env,
        stdout=subprocess.PIPE,
        timeout=HANG_SECONDS,
        check=True,
    ).stdout
    assert [os.fsdecode(word) for word in output.split(b"\0")[-len(odd) - 1 : -1]] == odd

    # No Python in there, which would add to the variables itself.
    output = subprocess.run(
        room.argv("cat", "/proc/self/environ", "-"),
        env=env,
        input=b"in",
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    assert output == b"".join(f"{name}={value}\0".encode() for name, value in env.items()) + b"in"


def test_exit_codes_and_signals_pass_through(room: Room) -> None:
    assert room.run(*python("raise SystemExit(17)")).returncode == 17
    code = """if True:
    import os, signal
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    print("ready", flush=True)
    while True: signal.pause()"""
    with subprocess.Popen(room.argv(*python(code)), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 7


# A machine's /opt, imitated: a folder that is not there cannot be made on the machine's own


def test_what_was_below_opt_is_still_there(room: Room, tmp_path: Path) -> None:
    opt = tmp_path / "opt"
    write(opt, {"tool/bin/run": "tool", "a file": "text"})
    (opt / "link").symlink_to("tool/bin")
    (opt / "broken").symlink_to("/no/such/place")
    (opt / "ml").symlink_to("nowhere")
    code = f"""if True:
    import sys
    sys.path.insert(0, {str(ENTER.parent)!r})
    import namespace
    namespace.TREE = {str(opt / "ml")!r}
    raise SystemExit(namespace.main(sys.argv[1:]))"""
    look = """if True:
    import os, sys
    from pathlib import Path
    opt = Path(sys.argv[1])
    print(sorted(os.listdir(opt)), (opt / "link/run").read_text(), (opt / "a file").read_text(), os.getcwd(),
          os.readlink(opt / "broken"), (opt / "ml/mark").read_text(), sorted(os.listdir(".")), sep="|")
    Path("new").write_text("seen by all")"""
    argv = [*python(code), *room.argv(*python(look, str(opt)))[len(PYTHON) + 1 :]]
    process = run(*argv, cwd=opt / "tool")
    assert process.stderr == ""
    below = ["a file", "broken", "link", "ml", "tool"]
    assert process.stdout == f"{below}|tool|text|{opt}/tool|/no/such/place|here|['bin']\n"
    assert names(opt) == below
    assert (opt / "ml").is_symlink()
    assert (opt / "tool/new").read_text() == "seen by all"


# Where it is not supported


def test_a_container_that_cannot_be_entered_says_why_in_one_line(
    room: Room, tmp_path: Path
) -> None:
    (tmp_path / "plain").write_text("echo never read by a shell")
    (tmp_path / "plain").chmod(0o755)
    none = Path("/no/such\nplace")
    tried = [
        room.run("no-such-program", "x"),
        room.run(str(tmp_path / "plain")),
        Room(none, room.hosts).run("true"),
        run(*PYTHON, str(ENTER), "few"),
    ]
    assert [
        (process.returncode, process.stdout, process.stderr.count("\n")) for process in tried
    ] == [(enter.CANNOT, "", 1)] * len(tried)


# Anybody, not only root

ALLOWED = """if True:
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    bad = libc.unshare(0x10020000) or libc.mount(b"none", b"/", b"none", ctypes.c_ulong(0x44000), None)
    raise SystemExit(os.strerror(ctypes.get_errno()) if bad else 0)"""


def test_anybody_can_enter_where_the_kernel_lets_them(room: Room) -> None:
    user = NOBODY if os.getuid() == 0 else None
    uid, gid = (user, user) if user else (os.getuid(), os.getgid())
    with tempfile.TemporaryDirectory(
        prefix="cloudtrain-test-", dir="/tmp"
    ) as name:  # pytest's own is closed to others
        folder = Path(name)
        folder.chmod(0o755)
        write(folder, {"ml/mark": "", "hosts": room.hosts.read_text()})
        shutil.copy(ENTER, folder / "enter.py")
        open_python = (python_for(user), *PYTHON[1:])
        allowed = run(*open_python, "-c", ALLOWED, user=user)
        if allowed.returncode != 0:
            pytest.skip(
                f"the kernel forbids user namespaces to others than root: {allowed.stderr.strip()}"
            )
        probe = run(*open_python, "enter.py", "--probe", cwd=folder, user=user)
        assert (probe.returncode, probe.stderr) == (0, "")

        look = (
            "import os, socket; print(os.getuid(), os.getgid(), socket.gethostname(),"
            " os.listdir('/opt/ml'), flush=1)"
        )
        argv = [
            *open_python,
            "enter.py",
            "ml",
            "algo-1",
            "hosts",
            *open_python,
            "-c",
            f"{look}; input()",
        ]
        # Whoever starts a container must be able to read its variables and to signal it, as the end
        # of leftovers does.
        watch = f"""if True:
        import signal, subprocess
        with subprocess.Popen({argv!r}, stdin=-1, stdout=-1, env={{"RUN_DIR_VARIABLE": "x"}}) as process:
            print(process.stdout.readline().decode(), end="")
            print(b"RUN_DIR_VARIABLE=x" in open(f"/proc/{{process.pid}}/environ", "rb").read())
            process.send_signal(signal.SIGTERM)
        print(process.returncode)"""
        process = run(*open_python, "-c", watch, cwd=folder, user=user)
        assert (process.stdout, process.stderr) == (f"{uid} {gid} algo-1 ['mark']\nTrue\n-15\n", "")


def python_for(user: int | None) -> str:
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            tried = run(
                python,
                *PYTHON[1:],
                "-c",
                "import sys; assert sys.version_info >= (3, 10)",
                user=user,
            )
        except OSError:
            continue
        if tried.returncode == 0:
            return python
    pytest.skip("no Python here that another user may execute")
