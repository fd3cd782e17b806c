"""The provider keeps to the protocol on a real Slurm, as the conformance suite tests it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudtrain.testing.conformance import (
    GREETING,
    GREETING_FILE,
    SECRET,
    Platform,
    ProviderConformance,
)
from tests.slurm.cluster import CONF, NEEDS_SLURM

pytestmark = NEEDS_SLURM


class TestSlurm(ProviderConformance):
    """All checks of the suite."""

    @classmethod
    @contextmanager
    def platform(cls, folder: Path) -> Iterator[Platform]:
        """The cluster of SLURM_CONF; names with spaces belong to the test."""
        data = folder / "input data"
        data.mkdir()
        (data / GREETING_FILE).write_text(GREETING)
        (folder / "a token").write_text(SECRET)
        yield Platform(
            provider="slurm",
            job={"slurm": {"folder": f"{folder}/runs of slurm"}, "image": {"slurm": sys.prefix}},
            env={"PATH": os.environ["PATH"], "SLURM_CONF": CONF},
            input=f"file://{data}",
            secret=f"file:{folder / 'a token'}",
            nodes=2,
        )
