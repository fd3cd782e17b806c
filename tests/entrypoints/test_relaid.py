"""A model that lies on several ranks: written once, brought together where it is needed, and cut anew by a resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.entrypoints.test_training import Launch


@pytest.mark.torchrun
@pytest.mark.parametrize("check", ["brought", "relaid"])
def test_a_model_that_lies_on_several_ranks(tmp_path: Path, check: str) -> None:
    """brought: one copy is staged, and rank 0 alone gets it whole. relaid: another cut goes on from the weights."""
    launch = Launch(tmp_path, str(Path(__file__).with_name("relaid.py")), check, str(tmp_path))
    launch.finish()
    assert launch.process.returncode == 0, "".join(launch.lines)
