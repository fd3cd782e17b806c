"""A forked command equals a new process for a test: pid, streams, signals, exit code, variables,
folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from cloudtrain.runs.folder import RunFolder
from tests.support.command_line import CommandLine
from tests.support.forked_command import ForkedCommand
from tests.support.samples import BORN, write_events
from tests.support.waiting import eventually

pytestmark = pytest.mark.linux(
    "what tells a program of the end of a process that it has not started"
)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check",),
        ("submit", "--dry-run", "--run-id", "a-1"),
        ("status", "no-such-run"),
        ("no-such-command",),
    ],
)
def test_it_prints_and_ends_as_an_interpreter_of_its_own_does(
    cli: CommandLine, arguments: tuple[str, ...]
) -> None:
    cli.write(job_yaml="entrypoint: train.py\n", train_py="print(1)\n")
    forked = cli.start(*arguments)
    fresh = cli.start(*arguments, PYTHONHASHSEED="1")
    assert (type(forked), type(fresh)) == (ForkedCommand, subprocess.Popen)
    assert forked.communicate() == fresh.communicate()
    assert forked.returncode == fresh.returncode


def test_it_leads_a_session_and_ends_by_a_signal(cli: CommandLine) -> None:
    run = cli.run_folder("a-1")
    run.mkdir(parents=True)
    (run / "plan.json").write_text("{}")
    write_events(RunFolder(run), {**BORN, "time": time.time()})  # just submitted: it is waited for
    cli.write(job_yaml="")
    waiting = cli.start("wait", "a-1")
    assert os.getsid(waiting.pid) == waiting.pid
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(timeout=0)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.communicate(timeout=0)
    assert waiting.poll() is None
    os.killpg(waiting.pid, signal.SIGKILL)
    assert eventually(waiting.poll) == -signal.SIGKILL
    assert waiting.communicate()[0] == ""
