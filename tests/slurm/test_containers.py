"""Jobs in containers, with programs in front that note their words and start no container."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import NEEDS_SLURM, instead_of, job_of, started
from tests.support.waiting import HANG_SECONDS

pytestmark = NEEDS_SLURM

RANKS = "import os\nassert os.environ['KEY'] == '5f1c'\n"
WITHOUT_PYXIS = """#!/bin/bash
echo "$@" >> {words}
[ "$1" != --help ] || exec echo --container-image
for word; do [[ $word = --container-* ]] || kept+=("$word"); done
exec {real} "${{kept[@]}}"
"""
WITHOUT_APPTAINER = """#!/bin/sh
echo "$@" >> {words}
[ "$1" != --version ] || exec echo apptainer version 1.4.0
while [ "$1" != {image} ]; do shift; done
shift
exec "$@"
"""


@pytest.mark.parametrize(
    ("container", "program", "text", "mount"),
    [
        ("pyxis", "srun", WITHOUT_PYXIS, "--container-mounts={runs}:{runs},{data}:{data}:ro"),
        (
            "apptainer",
            "apptainer",
            WITHOUT_APPTAINER,
            "--bind {runs}:{runs},{data}:{data}:ro",
        ),
    ],
)
def test_a_container_has_the_folders_of_the_job_and_its_command_no_secret(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    container: str,
    program: str,
    text: str,
    mount: str,
) -> None:
    image, words, data = (tmp_path / name for name in ("train.sqsh", "words", "data"))
    image.touch()
    data.touch()
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}")
    instead_of(program, tmp_path, monkeypatch, text, words=str(words), image=str(image))
    monkeypatch.setenv("TOKEN", "5f1c")
    job = job_of(
        tmp_path,
        RANKS,
        f", container: {container}",
        image=f"{{slurm: {image}}}",
        inputs=f"{{data: {{slurm: 'file://{data}'}}}}",
        secrets="{KEY: {slurm: 'env:TOKEN'}}",
    )
    run = started(job)
    assert run.wait(HANG_SECONDS).state == "succeeded"
    assert mount.format(runs=tmp_path / "runs" / run.id, data=data) in words.read_text()
    assert "5f1c" not in words.read_text()
