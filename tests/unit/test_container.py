"""One node's container: the environment of its program, and its view of the machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudtrain.planning.sagemaker import TrainingJob, training_job
from cloudtrain.providers.rehearsal import base
from cloudtrain.providers.rehearsal import namespace as enter
from cloudtrain.providers.rehearsal import sagemaker as emulator
from tests.support.samples import write
from tests.support.waiting import HANG_SECONDS

ENTER = Path(enter.__file__)
PYTHON = (sys.executable, "-I", "-S")


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


def run(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=HANG_SECONDS)


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


def test_a_program_changes_its_inputs_but_not_the_files_of_this_machine(
    room: Room, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = tmp_path / "two, words: data"
    write(data, {"kept": "1", "removed": "2", "folder/file": "3"})
    (room.root / "input" / "data").mkdir(parents=True)
    (room.root / "input" / "data" / "train").symlink_to(data)
    (room.root / "input" / "data" / "all").symlink_to(tmp_path)
    if room.run("stat", "-f", "-c", "%T", "/opt/ml/input/data/train/").stdout != "overlayfs\n":
        pytest.skip("no overlay can be mounted here")

    changed = "rm -r removed folder; echo 4 > new; echo 5 > kept; cat kept new; ls"

    link = tmp_path_factory.mktemp("link") / "to"
    link.symlink_to(tmp_path)
    written = f'echo > "{tmp_path}/beside"'

    for root in (room.root, link / "ml"):  # each start finds the inputs as they are
        process = Room(root, room.hosts).run(
            "sh", "-c", f"cd /opt/ml/input/data/train; {changed}; {written}"
        )
        assert (process.stdout.split(), process.stderr) == (["5", "4", "kept", "new"], "")
        (tmp_path / "beside").rename(tmp_path / "written")

    assert names(data) == ["folder", "kept", "removed"]
    assert (data / "kept").read_text() == "1"


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
        assert process.wait(HANG_SECONDS) == 7


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


def test_a_tree_has_the_files_and_channels_of_its_node_and_is_built_twice_alike(
    tmp_path: Path,
) -> None:
    write(tmp_path, {"data/a": "1", "file.csv": "2"})
    job = a_job("folder", "file", "empty")
    places = {"folder": tmp_path / "data", "file": tmp_path / "file.csv"}
    root = tmp_path / "nodes" / "1" / "ml"
    for _ in range(2):
        emulator.create_folders(job, job.containers[1], root, places)
        assert (
            json.loads((root / "input/config/resourceconfig.json").read_text())["current_host"]
            == "algo-2"
        )
        assert json.loads((root / "input/config/hyperparameters.json").read_text()) == {
            "epochs": "3"
        }
        assert (root / "input/data/folder").readlink() == tmp_path / "data"
        assert (root / "input/data/file/file.csv").readlink() == tmp_path / "file.csv"
        assert names(root / "input/data/empty") == []
        assert all(
            (root / name).is_dir() for name in ("model", "output/data", "checkpoints", "code")
        )
    assert names(root / "input/data/file") == ["file.csv"]
    assert names(tmp_path / "data") == ["a"]

    emulator.create_folders(job, job.containers[1], root, {})
    assert not (root / "input/data/folder").is_symlink()
    with pytest.raises(FileNotFoundError, match="no-such-data"):
        emulator.create_folders(job, job.containers[1], root, {"empty": tmp_path / "no-such-data"})


@pytest.mark.linux("a loopback address per node")
def test_every_node_has_an_address_in_the_order_of_the_nodes() -> None:
    assert base.node_addresses(1) == ("127.0.0.1",)
    assert base.node_addresses(2) == ("127.0.0.101", "127.0.0.102")
    many = base.node_addresses(1000)
    assert len(set(many)) == 1000
    assert list(many) == sorted(many)
