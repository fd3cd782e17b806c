"""One node's container as a process: output, exit code, signals, and complete removal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cloudtrain.providers.docker.container_spec import ROOT_CAPABILITIES, ULIMITS, Bind
from tests.providers.docker.conftest import Begin, MakeSpec
from tests.support.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from docker.client import DockerClient

pytestmark = pytest.mark.docker

LISTENING = """
import signal, sys, time
def leave(*_):
    print("asked", flush=True); sys.exit(5)
time.sleep({before})
signal.signal(signal.SIGTERM, {handler})
print("listening", flush=True)
time.sleep(600)
"""


def finished(process: subprocess.Popen[bytes]) -> tuple[int, bytes, list[dict[str, Any]]]:
    """Exit code, text and events."""
    out, _ = process.communicate(timeout=HANG_SECONDS)
    lines = out.split(b"\n")
    marked = [line[15:] for line in lines if line.startswith(b"::cloudtrain:: ")]
    return (
        process.returncode,
        b"\n".join(line for line in lines if line[:2] != b"::"),
        [json.loads(m) for m in marked],
    )


def test_its_output_arrives_byte_by_byte_and_line_by_line(
    make_spec: MakeSpec, begin: Begin
) -> None:
    program = (
        "import os,sys\n"
        "os.write(1, b'half a '); os.write(2, b'error\\n'); os.write(1, b'line\\n\\xff\\x00\\n')\n"
        "os.write(1, b'x' * 200000 + b'\\n' + b'no newline')\n"
        "print(file=sys.stderr, end='')\nsys.exit(7)\n"
    )
    code, text, events = finished(begin(make_spec(program)))
    lines = text.split(b"\n")
    assert code == 7
    assert lines[:2] in ([b"half a line", b"\xff\x00"], [b"error", b"half a line"])
    assert {b"half a line", b"error", b"\xff\x00", b"no newline"} <= set(lines)
    assert text.count(b"x") == 200000 + text.split(b"no newline")[1].count(b"x")
    assert events[0]["message"] == "its container exited with code 7: no newline"


def test_a_line_can_be_read_while_the_container_still_runs(
    make_spec: MakeSpec, begin: Begin
) -> None:
    process = begin(make_spec(LISTENING.format(before=0, handler="leave")))
    assert process.stdout is not None
    assert process.stdout.readline() == b"listening\n"
    process.terminate()
    code, text, events = finished(process)
    assert (code, text) == (5, b"asked\n")
    assert [(e["type"], e["outcome"], e["forced"]) for e in events] == [
        ("node_ended", "stopped", False)
    ]


def test_what_ignores_a_stop_is_killed_within_the_grace_period(
    make_spec: MakeSpec, begin: Begin
) -> None:
    process = begin(
        make_spec(LISTENING.format(before=0, handler="signal.SIG_IGN"), grace_seconds=4)
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    code, _, events = finished(process)
    assert (code, events[-1]["forced"], events[-1]["outcome"]) == (137, True, "stopped")


def test_it_ends_with_its_supervisor(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec(LISTENING.format(before=0, handler="leave"))
    (tmp_path / "container.json").write_text(json.dumps(spec.to_json()))
    parent = (
        "import os, subprocess, sys\nfrom cloudtrain.providers.local.processes import"
        " run_module\nenv = {**os.environ, 'CLOUDTRAIN_SUPERVISOR_PID': str(os.getpid())}\nchild ="
        " subprocess.Popen([*run_module('docker.node'), sys.argv[1]], env=env,"
        " stdout=subprocess.PIPE)\nprint(child.stdout.readline().decode(),"
        " flush=True)\nsys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    supervisor = subprocess.Popen(
        [sys.executable, "-c", parent, str(tmp_path / "container.json")], stdin=pipe, stdout=pipe
    )
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline() == b"listening\n"
    supervisor.kill()
    supervisor.communicate()


def test_secrets_and_variables_are_in_the_environment_and_the_user_has_a_home(
    make_spec: MakeSpec, begin: Begin, tmp_path: Path
) -> None:
    program = (
        "import getpass, os, pathlib\nprint(os.environ['GREETING'], os.environ['TOKEN'],"
        " pathlib.Path.home(), getpass.getuser(),"
        " os.getuid())\npathlib.Path('/out/file').write_text('mine');"
        " pathlib.Path('/tmp/x').write_text('room')\nprint('SECRETS', [name for name in os.environ"
        " if name.startswith('CLOUDTRAIN_')])\n"
    )
    (tmp_path / "out").chmod(0o777)
    spec = make_spec(program, secrets=("TOKEN",), user="12345:12346")
    _, text, _ = finished(begin(spec, CLOUDTRAIN_SECRET_TOKEN="hunter2"))
    assert text.startswith(b"hello hunter2 /tmp cloudtrain 12345\nSECRETS []\n")
    status = (tmp_path / "out" / "file").stat()
    assert (status.st_uid, status.st_gid) == (12345, 12346)
    assert "hunter2" not in (tmp_path / "container.json").read_text()


RIGHTS = """
import json, os, resource
from pathlib import Path
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
limits = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in ("MEMLOCK", "STACK")}
print(json.dumps({
    "groups": sorted(os.getgroups()), "no_new_privileges": status["NoNewPrivs"].strip(), "limits": limits,
    "may": int(status["CapBnd"], 16), "does": int(status["CapEff"], 16), "gpus": os.environ["NVIDIA_VISIBLE_DEVICES"],
    "input": Path("/in/data.csv").read_text(),
}))
"""
CHOWN = 1 << 0
DAC_OVERRIDE = 1 << 1
FOWNER = 1 << 3
KILL = 1 << 5
SETGID = 1 << 6
SETUID = 1 << 7
"""By capabilities(7)."""


@pytest.mark.parametrize("user", ["12345:12346", "0:0"], ids=["a person", "root"])
def test_a_container_has_the_permissions_of_its_user_and_no_more(
    user: str, make_spec: MakeSpec, begin: Begin, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir(mode=0o755)
    (tmp_path / "in" / "data.csv").write_text("for the group alone")
    (tmp_path / "in" / "data.csv").chmod(0o640)
    if os.getuid() == 0:
        os.chown(tmp_path / "in" / "data.csv", 4242, 4711)
    group = str((tmp_path / "in" / "data.csv").stat().st_gid)
    binds = (Bind(source=str(tmp_path / "in"), target="/in", read_only=True),)
    root = user == "0:0"
    options = {
        "user": user,
        "groups": (group,),
        "ulimits": ULIMITS,
        "capabilities": ROOT_CAPABILITIES if root else (),
    }
    _, text, _ = finished(begin(make_spec(RIGHTS, binds=binds, **options)))
    report = json.loads(next(line for line in text.splitlines() if line.startswith(b"{")))
    assert report["input"] == "for the group alone"
    assert int(group) in report["groups"]
    assert report["no_new_privileges"] == "1"
    limits = {"MEMLOCK": [-1, -1], "STACK": [64 * 2**20, -1]}
    refused = b"may not raise the limits of its containers" in text
    assert (report["limits"] == limits) != refused
    assert report["may"] == (CHOWN | DAC_OVERRIDE | FOWNER | KILL | SETGID | SETUID if root else 0)
    assert report["does"] == report["may"]
    assert report["gpus"] == "void"


@pytest.mark.parametrize("child", [True, False], ids=["a child", "the first process"])
def test_out_of_memory_is_told_apart(child: bool, make_spec: MakeSpec, begin: Begin) -> None:
    eat = "b = bytearray(400_000_000); print(len(b))"
    program = (
        f"import subprocess,sys; sys.exit(subprocess.call([sys.executable, '-c', {eat!r}]) != 0)"
        if child
        else eat
    )
    code, text, events = finished(begin(make_spec(program, memory_bytes=100_000_000)))
    why = "out of host memory: its container reached the limit of 100 MB"
    assert f"[node 0] the kernel killed a process of this container: {why}".encode() in text
    how = (
        "its container exited with code 1 and said nothing"
        if child
        else "its container was killed by SIGKILL"
    )
    assert (code, events[0]["message"]) == (1 if child else 137, f"{how} ({why})")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no such image": (
        {"image": "cloudtrain-test:none"},
        "no image cloudtrain-test:none on this machine",
    ),
    "no GPU": ({"gpus": ("0",)}, "this Docker engine cannot give GPUs to containers"),
    "no such folder": (
        {"binds": (Bind(source="/no/such", target="/in"),)},
        "cannot see a folder of this machine",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_container_that_cannot_start_is_removed_and_the_reason_told(
    case: str, make_spec: MakeSpec, begin: Begin
) -> None:
    changes, message = BAD[case]
    code, text, events = finished(begin(make_spec("", **changes)))
    assert code == 1
    assert b"Traceback" not in text
    assert message in events[0]["message"]
    assert [event["type"] for event in events] == ["error", "node_ended"]


def test_a_volume_of_the_image_goes_with_its_container(
    make_spec: MakeSpec, begin: Begin, docker: DockerClient
) -> None:
    spec = make_spec(LISTENING.format(before=0, handler="leave"))
    process = begin(spec)
    assert process.stdout is not None
    process.stdout.readline()
    mounts = docker.containers.get(spec.name).attrs["Mounts"]
    volume = next(mount["Name"] for mount in mounts if mount["Type"] == "volume")
    os.kill(process.pid, signal.SIGTERM)
    finished(process)
    assert volume not in {entry.name for entry in docker.volumes.list()}
