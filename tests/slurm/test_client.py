"""The client beside a real Slurm: checks, exports, costs, runs of other machines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import cloudtrain
from tests.slurm.cluster import (
    HAS_SLURMDBD,
    NEEDS_SLURM,
    answer_of,
    client,
    job_of,
    log_of,
    printed_by,
    started,
)
from tests.support.waiting import HANG_SECONDS, eventually

pytestmark = NEEDS_SLURM

RANKS = "import os\nprint('rank', os.environ['RANK'], flush=True)\n"


@pytest.mark.parametrize(
    ("fields", "parts", "complaint"),
    [
        ("", {"resources": "{nodes: 3}"}, "Requested node configuration is not available"),
        (", partition: nosuch", {}, "Invalid partition name"),
        (", request: {no-such: true}", {}, "unrecognized option"),
        (", partition: one", {"resources": "{}", "limits": "{max_runtime: 1 h}"}, "allows 5 min"),
        ("", {"inputs": "{data: {slurm: 'file:///nosuch'}}"}, "there is nothing at file:///nosuch"),
        ("", {"image": "{slurm: /nosuch}"}, "there is nothing at /nosuch"),
        (", container: pyxis", {"image": "{slurm: 'pytorch:2'}"}, "the cluster lacks Pyxis"),
    ],
)
def test_what_could_never_start_is_refused_before_it_is_sent(
    tmp_path: Path, fields: str, parts: dict[str, str], complaint: str
) -> None:
    job = job_of(tmp_path, RANKS, fields, **parts)
    with pytest.raises(cloudtrain.CloudtrainError) as refused:
        started(job)

    assert complaint in str(refused.value)
    assert complaint in client("check", str(job), "--provider", "slurm", "--online").stderr


def test_a_doctor_names_what_was_not_checked(tmp_path: Path) -> None:
    text = printed_by("doctor", "slurm", "--job", str(job_of(tmp_path, RANKS)))
    assert "less than the 30 s of stop_grace" in text
    unknown = "nodes" if HAS_SLURMDBD else "account, nodes"
    assert text.endswith(f"all found; not checked: {unknown}\n")


def test_a_machine_without_slurm_is_sent_to_a_login_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(cloudtrain.CloudtrainError, match="login node"):
        started(job_of(tmp_path, RANKS))


def test_an_exported_job_runs_without_the_client(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("5f1c")
    secrets = f"{{KEY: {{slurm: 'file:{tmp_path}/key'}}}}"
    job = job_of(tmp_path, RANKS, secrets=secrets)
    folder = tmp_path / "exported"
    printed_by("plan", str(job), "--provider", "slurm", "--export", str(folder))
    assert "5f1c" not in "".join(file.read_text() for file in folder.glob("job.*"))
    subprocess.run([folder / "start.sh"], check=True, capture_output=True)
    (run,) = (tmp_path / "runs").iterdir()
    eventually(lambda: (run / "exit").exists())
    assert (run / "exit").read_text() == "0\n"
    assert not (run / "secrets").exists()


def test_a_printed_script_is_accepted_as_it_is(tmp_path: Path) -> None:
    script = printed_by("plan", str(job_of(tmp_path, RANKS)), "--provider", "slurm", "--script")
    subprocess.run(["sbatch", "--test-only"], input=script, text=True, check=True)


def test_runs_of_another_machine_are_listed_and_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(job_of(tmp_path, RANKS))
    run.wait(HANG_SECONDS)
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "another"))
    assert run.id in printed_by("list", "--provider", "slurm")
    run_there = cloudtrain.find_run(run.id)
    assert run_there.wait(HANG_SECONDS).state == "succeeded"
    assert "rank 1" in "\n".join(line.text for line in run_there.logs())
    assert "rank 1" in log_of(tmp_path, run)


def test_a_price_caps_a_job_and_its_cost_is_told(tmp_path: Path) -> None:
    resources = "{nodes: 2, gpus: 1}"
    limits = "{max_cost: 10 USD}"
    env = "{CUDA_VISIBLE_DEVICES: ''}"
    job = job_of(tmp_path, RANKS, ", price: 2 USD", resources=resources, limits=limits, env=env)
    plan = cloudtrain.plan(cloudtrain.load(job), "slurm")
    assert plan.target.cost_estimate is not None
    assert plan.target.cost_estimate.worst_usd == pytest.approx(10, abs=0.01)
    run = cloudtrain.submit(plan)
    state = run.wait(HANG_SECONDS)
    assert "shows 0 GPUs" in str(state.error)
    assert state.billing is not None
    assert state.billing.billable_seconds is not None
    assert state.billing.usd == pytest.approx(4 * state.billing.billable_seconds / 3600, abs=1e-4)
    assert answer_of("squeue", "-h", "-n", run.id) == ""
