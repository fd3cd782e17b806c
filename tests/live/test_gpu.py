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


def run(*argv: str) -> str:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
    ).stdout


def test_a_rehearsal_runs_every_part_on_the_cpu(tmp_path: Path) -> None:
    table = run("-m", "tests.live.gpu", "--rehearse", "--json", str(tmp_path / "gpu.json"))
    document = json.loads((tmp_path / "gpu.json").read_text())
    parts = document["parts"]
    assert document["rehearsal"] is True
    image = parts.pop("the_image_trains")
    assert image["shown"] == "ran" or (image["shown"], bool(image["reason"])) == ("not here", True)
    assert {name: part["shown"] for name, part in parts.items()} == dict.fromkeys(parts, "ran")
    assert parts["a_process_group_starts"]["figures"]["backend"] == "gloo"
    assert parts["compile_is_on"]["figures"]["graphs"] == 1
    assert parts["a_checkpoint_fits_beside_a_full_gpu"]["figures"]["written_bytes"] > 1e6
    assert parts["a_resume_goes_on_exactly"]["figures"]["difference"] < 1e-6
    assert len(table.splitlines()) == 2 + len(parts) + 1


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


def print_outcomes() -> None:
    """Run parts that fail before one that works; run by the test below."""
    from tests.live.gpu import prove
    from tests.live.gpu_parts import PARTS, Setting

    PARTS.clear()
    PARTS.update({crashes: 60, hangs: 0.5, fails: 60, works: 60})
    outcomes = prove(Setting(Path()))
    print(json.dumps([part.get("reason", part.get("figures")) for part in outcomes.values()]))


def test_a_part_that_fails_does_not_end_the_others() -> None:
    program = "from tests.live import test_gpu; test_gpu.print_outcomes()"
    assert json.loads(run("-c", program)) == [
        "its process ended with code 3",
        "it took longer than 0 s",
        "ValueError: as planted",
        {"figure": 1},
    ]
