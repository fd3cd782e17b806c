"""Failures of a run, and the first lines for the user: the rank, its exception, its line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine, CommandResult
from tests.support.failure_reports import NOISE, TRAINING
from tests.support.waiting import HANG_SECONDS

pytestmark = pytest.mark.torchrun

GROUP = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from cloudtrain_job import emit
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.all_reduce(torch.ones(1))
emit("training", attempt=attempt, pid=os.getpid())
"""
FOREVER = """
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.01)
"""


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_first_thing_read_is_the_failing_rank_with_its_exception_and_line(
    cli: CommandLine,
) -> None:
    cli.write(
        job_yaml="name: dog\nentrypoint: train.py\nresources: {nodes: 2, processes: 2}\n",
        train_py=GROUP + 'if rank == 3:\n    raise ValueError("the dog ate shard 3")\n' + FOREVER,
    )
    result = cli.run("submit", "--run-id", "dog-1")
    assert result.code == 1
    before = ("dog-1  2 nodes", "  (", "  waiting for peers for ")  # the last on a slow machine
    lines = [line for line in result.err.splitlines() if not line.startswith(before)]
    assert lines[0].startswith("dog-1 failed after")
    assert lines[0].endswith("rank 3 (node 1) raised ValueError: the dog ate shard 3")
    assert lines[1].strip() == 'train.py:11  raise ValueError("the dog ate shard 3")'
    assert "closed" not in result.err
    state = cli.json("status", "dog-1")
    assert (state["error"]["rank"], state["error"]["node"], state["error"]["line"]) == (3, 1, 11)
    assert "ValueError: the dog ate shard 3" in state["error"]["traceback"]
    assert "worker.py" not in state["error"]["traceback"]
    assert cli.run("wait", "dog-1").code == 1
    assert cli.processes() == []


def test_a_rank_killed_on_one_of_two_nodes_restarts_both(cli: CommandLine) -> None:
    cli.write(
        job_yaml=(
            "name: two\nentrypoint: train.py\nresources: {nodes: 2, processes: 1}\nlimits:"
            " {restarts: 2}\n"
        ),
        train_py=GROUP
        + "if not os.path.exists('../../died') and rank == 1:\n    open('../../died',"
        " 'w').close()\n" + "    os.kill(os.getpid(), signal.SIGKILL)\n" + "emit('rank_is',"
        " node_rank=int(os.environ['CLOUDTRAIN_NODE_RANK']))\ndist.all_reduce(torch.ones(1))\n",
    )
    result = cli.run("submit", "--run-id", "two-1")
    assert result.code == 0, result.err
    ranks = [(e["rank"], e["node_rank"]) for e in cli.events("two-1") if e["type"] == "rank_is"]
    assert set(ranks[-2:]) == {(0, 0), (1, 1)}, "ranks keep the order of the nodes under c10d too"
    assert cli.json("status", "two-1")["restarts"] == 1
    why = [event["why"] for event in cli.events("two-1") if event["type"] == "restarted"]
    assert "rank 1 (node 1) was killed by SIGKILL (out of host memory?)" in why
    log = cli.run("logs", "two-1").out
    assert "frame #" not in log, "the node with the store may leave first: that is not a crash"
    assert "node_rank is only used" not in log


def test_a_rank_that_ends_well_while_another_waits_for_it_is_named(cli: CommandLine) -> None:
    cli.write(
        job_yaml="name: early\nentrypoint: train.py\nresources: {processes: 2}\n",
        train_py=GROUP + "if rank == 1:\n    sys.exit(0)\n" + FOREVER,
    )
    result = cli.run("submit", "--run-id", "early-1")
    assert result.code == 1
    assert (
        "rank 1 (node 0) ended with exit code 0 while rank 0 (node 0) still waited for it"
        in result.err
    )


def test_a_crash_in_native_code_is_reported_with_the_line_of_python(cli: CommandLine) -> None:
    cli.write(
        job_yaml="name: crash\nentrypoint: train.py\n",
        train_py="import os\ndef deep():\n    os.kill(os.getpid(), 11)\ndeep()\n",
    )
    result = cli.run("submit", "--run-id", "crash-1")
    assert result.code == 1
    assert "rank 0 (node 0) was killed by SIGSEGV" in result.err
    assert "train.py:3  os.kill(os.getpid(), 11)" in result.err
    assert "Fatal Python error: Segmentation fault" in cli.run("logs", "crash-1").out


def test_processes_that_never_meet_are_reported_and_fail_on_request(
    cli: CommandLine,
) -> None:
    cli.write(
        job_yaml="name: apart\nentrypoint: train.py\nresources: {processes: 2}\n",
        train_py="print('my own model')\n",
    )
    result = cli.run("submit", "--run-id", "apart-1")
    assert result.code == 0
    assert (
        "warning: the processes of this job never formed one torch.distributed group" in result.err
    )
    assert len(cli.json("status", "apart-1")["warnings"]) == 1
    required = cli.run("submit", "--run-id", "apart-2", "--set", "launch.require_group=true")
    assert required.code == 1
    assert "ended without having joined one torch.distributed group with all others" in required.err


def test_stop_kills_a_program_that_ignores_it_and_its_detached_child(cli: CommandLine) -> None:
    cli.write(
        job_yaml="name: mule\nentrypoint: train.py\n",
        train_py=(
            "import signal, subprocess, time\nfrom cloudtrain_job import emit\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
            "emit('training', child=child.pid)\ntime.sleep(600)\n"
        ),
    )
    submitted = cli.run("submit", "--run-id", "mule-1", "--detach", CLOUDTRAIN_STOP_GRACE="5 s")
    assert (submitted.code, submitted.out) == (0, "mule-1\n")
    child = cli.wait_for_event("mule-1", lambda e: e["type"] == "training")["child"]
    waited = cli.run("wait", "mule-1", "--timeout", "0.1 s", "--json")
    assert (waited.code, json.loads(waited.out)["state"]) == (
        5,
        "running",
    ), "who gives up waiting is told the state"
    stopped = cli.run("stop", "mule-1")
    assert stopped.code == 0
    assert "stop requested (by force, after the grace period)" in stopped.err
    state = cli.json("status", "mule-1")
    assert state["state"] == "stopped"
    assert state["ended"] - state["created"] < 600, "the child alone would sleep so long"
    assert cli.processes() == []
    assert not is_running(child)
    started = [event for event in cli.events("mule-1") if event["type"] == "node_started"]
    assert [event["scratch"] for event in started if Path(event["scratch"]).exists()] == []


def test_a_stop_at_once_after_submit_is_not_lost(cli: CommandLine) -> None:
    cli.write(
        job_yaml="name: hasty\nentrypoint: train.py\n",
        train_py="import time\ntime.sleep(600)\n",
        go_py=(
            "import cloudtrain\nrun = cloudtrain.submit(cloudtrain.plan(cloudtrain.load()))\n"
            "state = run.stop()\nprint(state.state, '|', state.reason)\n"
        ),
    )
    process = subprocess.run(
        [sys.executable, "go.py"],
        cwd=cli.folder / "job",
        env=cli.environment(),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    assert process.stdout == "stopped | stop requested\n"


def test_max_runtime_stops_a_run_with_its_own_exit_code(cli: CommandLine) -> None:
    cli.write(
        job_yaml="name: slow\nentrypoint: train.py\nlimits: {max_runtime: 2 s}\n",
        train_py="import time\ntime.sleep(600)\n",
    )
    result = cli.run("submit", "--run-id", "slow-1")
    assert result.code == 5
    assert (
        "the time limit of 2 s is over (limits.max_runtime, or what limits.max_cost pays for)"
        in result.err
    )
    assert (
        "raise limits.max_runtime; no checkpoint was told of" in cli.run("diagnose", "slow-1").out
    )


def test_a_killed_client_loses_nothing(cli: CommandLine) -> None:
    cli.write(
        job_yaml="name: ghost\nentrypoint: train.py\nresources: {processes: 2}\n",
        train_py=GROUP
        + "import pathlib\nwhile not pathlib.Path('../../../go').exists():\n    time.sleep(0.02)\n"
        "dist.barrier()\nprint('finished without you')\n",
    )
    client = cli.start("submit", "--run-id", "ghost-1")
    cli.wait_for_event("ghost-1", lambda e: e["type"] == "training")
    os.killpg(client.pid, signal.SIGKILL)
    client.wait()
    (cli.run_folder("ghost-1") / "go").touch()
    waited = cli.run("wait", "ghost-1")
    assert waited.code == 0, waited.err
    assert "finished without you" in cli.run("logs", "ghost-1").out


def test_a_rerun_names_what_changed_since(cli: CommandLine) -> None:
    cli.write(job_yaml='launcher: none\nentrypoint: "true"\n', train_py="")
    assert cli.run("submit", "--run-id", "first").code == 0
    assert "changed" not in cli.run("rerun", "first", "--detach").err

    cli.write(train_py="print(2)")
    result = cli.run("rerun", "first", "--detach")
    assert "source of first; changed since: train.py. cloudtrain submit takes" in result.err


def test_interrupting_the_client_detaches_and_says_how_to_go_on(cli: CommandLine) -> None:
    cli.write(
        job_yaml="name: leave\nentrypoint: train.py\n",
        train_py=(
            "import time, pathlib\nfrom cloudtrain_job import emit\nemit('training')\n"
            "while not pathlib.Path('../../../go').exists():\n    time.sleep(0.02)\n"
        ),
    )
    client = cli.start("submit", "--run-id", "leave-1")
    cli.wait_for_event("leave-1", lambda e: e["type"] == "training")
    client.send_signal(signal.SIGINT)
    _, stderr = client.communicate(timeout=HANG_SECONDS)
    assert client.returncode == 130
    assert "leave-1 keeps running" in stderr
    assert "cloudtrain stop leave-1" in stderr
    assert "Traceback" not in stderr
    (cli.run_folder("leave-1") / "go").touch()
    assert cli.run("wait", "leave-1").code == 0


PROGRAMS = {
    "ValueError": ("", "raise ValueError('the dog ate shard 3')"),
    "KeyError": ("", "labels = {}\nlabels['dog']"),
    "chained": (
        "disk-full",
        "try:\n    with open('/dev/full', 'w') as file:\n        file.write('x' * 99999)\n"
        "except OSError as error:\n    raise RuntimeError('step 40 was not saved') from error",
    ),
    "group": (
        "module-not-found",
        "raise ExceptionGroup('loaders', [ValueError('a'), ModuleNotFoundError(\"No module named"
        " 'einops'\")])",
    ),
    "module": ("module-not-found", "import einops_that_nobody_has"),
    "memory": (
        "host-allocation-failed",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))\n"
        "bytearray(1 << 40)",
    ),
    "SIGKILL": ("killed", "import os\nos.kill(os.getpid(), 9)"),
    "SIGSEGV": ("segmentation-fault", "import ctypes\nctypes.string_at(0)"),
    "SIGABRT": ("aborted", "import os\nos.abort()"),
    "SIGTERM": ("told-to-end", "import os\nos.kill(os.getpid(), 15)"),
    "exit code": ("exit-code", "import sys\nsys.exit(3)"),
    "exit without a word": ("exit-code", "import os\nos._exit(7)"),
    "exit after a word": (
        "exit-code",
        "import sys\nprint('error: no config given', file=sys.stderr)\nsys.exit(3)",
    ),
    "thread": (
        "",
        "import sys, threading\ndef load():\n    raise ValueError('the dog ate shard 3')\n"
        "thread = threading.Thread(target=load)\nthread.start()\nthread.join()\nsys.exit(1)",
    ),
    "interrupt": ("terminated", "import signal\nsignal.raise_signal(signal.SIGINT)"),
    "pickle": ("not-picklable", "import pickle\npickle.dumps(lambda: 0)"),
    "config": ("", "config = {'epochs': None}\nint(config['epochs'])"),
    "port": (
        "port-in-use",
        "import socket\nfirst = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_server(first.getsockname())",
    ),
    "exit message": ("", "import sys\nsys.exit('no config given')"),
    "arguments": (
        "arguments",
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--lr', required=True)\nparser.parse_args()",
    ),
    "shapes": ("shapes-differ", "import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)"),
    "file": ("file-not-found", "open('no/such/file')"),
}
"""Rule of the cause and program, by kind of failure."""


AT_EXIT = """import atexit
class Cleanup:
    def __del__(self):
        raise RuntimeError("cleanup of a temporary folder failed")
def flush():
    raise RuntimeError("could not flush the metrics")
cleanup = Cleanup()
atexit.register(flush)
atexit.register(print, "wandb: Synced 5 W&B file(s), 0 media file(s)")
"""


def assert_explained_alike(cli: CommandLine, run: str, submitted: CommandResult) -> dict[str, Any]:
    """Compare `submit`, `status`, `diagnose RUN` and `diagnose FILE`; return the cause."""
    failure = cli.json("diagnose", run)["failure"]
    log = cli.folder / f"{run}.log"
    log.write_text(cli.run("logs", run).out, encoding="utf-8")
    of_file = cli.json("diagnose", str(log))["failure"]

    case = (run, failure, of_file, submitted.err)
    assert submitted.code == 1, case
    for name in ("headline", "rule", "cause", "confidence", "remedy"):
        assert of_file[name] == failure[name], case

    first_line = failure["headline"].splitlines()[0]
    assert first_line in submitted.err, case
    assert (failure["remedy"] or "") in submitted.err, case
    assert first_line in cli.run("status", run).out, case
    return dict(failure)


def test_every_command_names_the_same_cause_between_harmless_lines(
    cli: CommandLine, thorough: bool
) -> None:
    kinds = list(NOISE)
    pairs = [(failure, shift) for shift in (0, 3) for failure in PROGRAMS]
    selected = pairs if thorough else pairs[2:18:4]

    for number, (failure, shift) in enumerate(selected):
        rule, program = PROGRAMS[failure]
        noise = kinds[(number + shift) % len(kinds)]
        printed = [*NOISE[noise], *(TRAINING if number % 2 else ())]
        cli.write(
            job_yaml="name: noisy\nentrypoint: train.py\n",
            train_py=(
                f"{AT_EXIT}for line in {printed!r}:\n    print(line, flush=True)\n{program}\n"
            ),
        )

        submitted = cli.run("submit", "--run-id", f"noisy-{number}")

        diagnosis = assert_explained_alike(cli, f"noisy-{number}", submitted)
        listed = {run["run"]: run["cause"] for run in cli.json("list")}
        case = (failure, noise, submitted.err)
        assert diagnosis["rule"] == (rule or None), case
        assert diagnosis["headline"].startswith(listed[f"noisy-{number}"]), case


TWO_RANKS = {
    "other collective": (
        "if rank == 0:\n    dist.all_reduce(torch.ones(1))\n"
        "else:\n    dist.broadcast(torch.ones(1), 0)\n    dist.barrier()\n",
        "Timed out waiting|Connection closed by peer",  # whichever rank's error comes first
    ),
    "one rank": (
        "if rank == 1:\n    labels = {}\n    labels['dog']\ndist.barrier()\n",
        r"rank 1 \(node 0\) raised KeyError: 'dog'",
    ),
}
"""Program of two ranks, and a pattern of the headline, by kind of failure."""


@pytest.mark.parametrize("kind", TWO_RANKS)
def test_every_command_names_the_same_of_two_ranks(cli: CommandLine, kind: str) -> None:
    program, headline = TWO_RANKS[kind]
    group = (
        "import datetime\nimport torch\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=5))\n"
        "rank = dist.get_rank()\n"
    )
    cli.write(
        job_yaml="name: two\nentrypoint: train.py\nresources: {processes: 2}\n",
        train_py=AT_EXIT + group + program,
    )
    submitted = cli.run("submit", "--run-id", "two-1")
    failure = assert_explained_alike(cli, "two-1", submitted)
    assert re.search(headline, failure["headline"])
    if kind == "other collective":
        shown = [(line["rank"], line["text"]) for line in failure["evidence"]]
        assert sorted(shown) == [
            (0, "train.py:16  dist.all_reduce(torch.ones(1))"),
            (1, "train.py:18  dist.broadcast(torch.ones(1), 0)"),
        ]
