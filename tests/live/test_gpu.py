"""`make gpu` runs without a GPU as a rehearsal, and survives parts that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.repo.tools import ROOT
from tests.support.waiting import HANG_SECONDS

pytestmark = [pytest.mark.once, pytest.mark.linux("forks a process that has imported torch")]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of both programs below, in one process: importing torch takes seconds."""
    argv = [sys.executable, "-c", "from tests.live import test_gpu; test_gpu.rehearse_and_fail()"]
    env = {**os.environ, "JSON": str(tmp_path_factory.mktemp("gpu") / "gpu.json")}
    process = subprocess.run(
        argv,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
    )
    return process.stdout.splitlines()


def test_a_rehearsal_runs_every_part_on_the_cpu(printed: list[str]) -> None:
    *table, text, _ = printed
    document = json.loads(text)
    parts = document["parts"]
    assert document["rehearsal"] is True
    image = parts.pop("the_image_trains")
    assert image["shown"] == "ran" or (image["shown"], bool(image["reason"])) == ("not here", True)
    assert {name: part["shown"] for name, part in parts.items()} == dict.fromkeys(parts, "ran")
    assert parts["a_process_group_starts"]["figures"]["backend"] == "gloo"
    assert parts["compile_is_on"]["figures"]["graphs"] == 1
    assert parts["a_checkpoint_fits_beside_a_full_gpu"]["figures"]["written_bytes"] > 1e6
    assert parts["a_resume_goes_on_exactly"]["figures"]["difference"] < 1e-6
    assert len(table) == 2 + len(parts) + 1


def crashes(_: Any) -> dict[str, Any]:
    """crashes"""
    os._exit(3)


def hangs(_: Any) -> dict[str, Any]:
    """hangs"""
    time.sleep(HANG_SECONDS)
    return {}


def fails(_: Any) -> dict[str, Any]:
    """fails"""
    raise ValueError("as planted")


def works(_: Any) -> dict[str, Any]:
    """works"""
    return {"figure": 1}


def rehearse_and_fail() -> None:
    """Rehearse all parts, then run parts that fail before one that works."""
    from tests.live.gpu import main, prove
    from tests.live.gpu_parts import PARTS, Setting

    document = Path(os.environ["JSON"])
    main(["--rehearse", "--json", str(document)])
    print(json.dumps(json.loads(document.read_text())))

    PARTS.clear()
    PARTS.update({crashes: 60, hangs: 0.5, fails: 60, works: 60})
    outcomes = prove(Setting(Path()))
    print(json.dumps([part.get("reason", part.get("figures")) for part in outcomes.values()]))


def test_a_part_that_fails_does_not_end_the_others(printed: list[str]) -> None:
    assert json.loads(printed[-1]) == [
        "its process ended with code 3",
        "it took longer than 0 s",
        "ValueError: as planted",
        {"figure": 1},
    ]
