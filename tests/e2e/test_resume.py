"""Kill and rerun with the shared trainer: no progress is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

pytestmark = pytest.mark.torchrun

JOB = """
name: digits
args: {epochs: 6, checkpoint-every-steps: 5, seed: 3}
resources: {processes: 2}
"""


def test_a_run_whose_supervisor_was_killed_leaves_a_checkpoint_to_go_on_from(
    cli: CommandLine,
) -> None:
    """That it ends as one never touched is shown by test_ten_kills.py."""
    cli.write(job_yaml=JOB)
    cli.run("submit", "--run-id", "kill-1", "--detach")
    cli.wait_for_event("kill-1", lambda e: e["type"] == "checkpoint" and e["step"] >= 20)
    pid = int((cli.run_folder("kill-1") / "supervisor.lock").read_text())
    os.kill(pid, signal.SIGKILL)
    waited = cli.run("wait", "kill-1")
    assert waited.code == 1
    assert "supervisor is gone" in waited.err
    assert "have been ended" not in waited.err, "the launchers stopped by themselves, in good order"
    assert any(
        e["type"] == "node_started" and not Path(e["scratch"]).exists()
        for e in cli.events("kill-1")
    )
    assert cli.processes() == []
    rerun = cli.run("rerun", "kill-1")
    assert rerun.code == 0, rerun.err
    assert "resumed from the checkpoint of step" in rerun.err
    assert "imports torch by itself" not in cli.run("logs", "kill-1").out, (
        "the trainer's ranks are forks"
    )


def test_rerun_resumes_from_copied_checkpoints_unless_the_run_succeeded(
    cli: CommandLine,
) -> None:
    cli.write(
        job_yaml="name: mine\nentrypoint: train.py\nargs: [1]\n",
        train_py="import os, sys\nfrom pathlib import Path\n"
        "folder = Path(os.environ['CLOUDTRAIN_CHECKPOINT_DIR'])\nfile = folder / 'latest.pt'\n"
        "print('found', file.read_text() if file.exists() else None)\n"
        "with file.open('w') as out:\n    out.write(os.environ['CLOUDTRAIN_RUN_ID'])\n"
        "if not (folder / 'link').is_symlink():\n    (folder / 'link').symlink_to('gone')\n"
        "sys.exit(int(sys.argv[1]))\n",
    )
    cli.run("submit", "--run-id", "mine-1")
    rerun = cli.run("rerun", "mine-1", "--set", "args=[0]")
    assert "found mine-1" in rerun.err
    assert (cli.run_folder("mine-1") / "checkpoints" / "latest.pt").read_text() == "mine-1"
    afresh = cli.run("rerun", "last")
    assert (rerun.code, afresh.code) == (0, 0)
    assert "found None" in afresh.err
    refused = cli.run("rerun", "mine-1", "--provider", "gcp")
    assert refused.code == 2
    assert "unknown provider 'gcp'" in refused.err
