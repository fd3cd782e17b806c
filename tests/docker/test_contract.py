"""The image alone honours SageMaker's contract: `docker run IMAGE train` over a tree at /opt/ml; a
stop saves.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.docker.engine import RUN_SECONDS, TRAINER, Engine, tree
from tests.entrypoints.launchers import events
from tests.support.waiting import HANG_SECONDS

pytestmark = [pytest.mark.docker, pytest.mark.torchrun]

SCRIPT = """
import json, os, socket, torch, torch.distributed as dist
from pathlib import Path
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
seen = {"total": total.item(), "rank": dist.get_rank(), "size": dist.get_world_size()}
seen["launcher"] = os.environ["CLOUDTRAIN_LAUNCHER_PID"]
Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], f"seen-{dist.get_rank()}.json").write_text(json.dumps(seen))
dist.destroy_process_group()
"""

OFFLINE = ("--network", "none", "--hostname", "localhost")  # a name that resolves without a network
NETWORKS = {
    "a network": ("algo-1", "eth0", ("--hostname", "algo-1")),
    "no network": ("localhost", "lo", OFFLINE),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_two_processes_of_a_user_s_program_form_one_process_group(
    engine: Engine, image: str, tmp_path: Path, network: str
) -> None:
    host, interface, options = NETWORKS[network]
    base = tree(tmp_path, SCRIPT, host, interface, processes=2)
    with engine.container(image, "train", options=options) as name:
        engine.do("cp", f"{base}/.", f"{name}:/opt/ml")
        log = engine.do("start", "--attach", name, timeout=RUN_SECONDS)
        engine.do("cp", f"{name}:/opt/ml/output/data", str(tmp_path / "data"))
    reports = [json.loads((tmp_path / f"data/seen-{rank}.json").read_text()) for rank in (0, 1)]
    assert [(s["rank"], s["size"], s["total"]) for s in reports] == [(0, 2, 3.0), (1, 2, 3.0)]
    assert {s["launcher"] for s in reports} == {"1"}, (
        "nothing stands between the engine and the launcher"
    )
    assert events(log)[-1]["outcome"] == "succeeded"


def test_the_shared_trainer_trains_with_what_the_image_has(
    engine: Engine, image: str, tmp_path: Path
) -> None:
    base = tree(tmp_path, argv=["--epochs", "1"], values={"epochs": 1}, **TRAINER)
    with engine.container(image, "train", options=OFFLINE) as name:
        engine.do("cp", f"{base}/.", f"{name}:/opt/ml")
        engine.do("start", "--attach", name, timeout=RUN_SECONDS)
        engine.do("cp", f"{name}:/opt/ml/model", str(tmp_path / "model"))
    assert any((tmp_path / "model").iterdir())


def test_a_stop_reaches_the_ranks_and_leaves_a_checkpoint_in_time(
    engine: Engine, image: str, tmp_path: Path
) -> None:
    job = TRAINER | {
        "argv": ["--epochs", "100000"],
        "values": {"epochs": 100_000},
        "grace_seconds": HANG_SECONDS,
    }
    base = tree(tmp_path, **job)
    with engine.container(image, "train", options=OFFLINE) as name:
        engine.do("cp", f"{base}/.", f"{name}:/opt/ml")
        engine.do("start", name)
        await_log(engine, name, '"epoch"')
        engine.do("stop", "--time", str(HANG_SECONDS), name, timeout=2 * HANG_SECONDS)
        log = engine.do("logs", name)
        state = engine.inspect(name)["State"]
        engine.do("cp", f"{name}:/opt/ml/checkpoints", str(tmp_path / "checkpoints"))
    assert state["ExitCode"] == 5, log
    assert events(log)[-1]["outcome"] == "stopped"
    assert list((tmp_path / "checkpoints").rglob("*.pt"))


def test_what_went_wrong_is_in_the_failure_file_and_the_exit_code(
    engine: Engine, image: str, tmp_path: Path
) -> None:
    (tmp_path / "ml/input/config").mkdir(parents=True)
    (tmp_path / "ml/input/config/resourceconfig.json").write_text("{}")  # identifies SageMaker
    with engine.container(image, options=OFFLINE) as name:  # `train` is what it does unasked
        engine.do("cp", f"{tmp_path}/ml/.", f"{name}:/opt/ml")
        started = engine.call("start", "--attach", name, timeout=RUN_SECONDS)
        engine.do("cp", f"{name}:/opt/ml/output/failure", str(tmp_path / "failure"))
    assert started.returncode == 1
    assert "source.tar.gz is missing" in (tmp_path / "failure").read_text()
    assert "Traceback" not in started.stdout


def await_log(engine: Engine, name: str, text: str) -> None:
    """Wait until a container has said something."""
    deadline = time.monotonic() + RUN_SECONDS
    while text not in (log := engine.do("logs", name)):
        assert time.monotonic() < deadline, log
        time.sleep(0.3)
