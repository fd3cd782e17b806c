"""NCCL's timeouts are written into the output, and named at the end of the run; what the user says
counts more.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cloudtrain_launcher import flight_recorder
from tests.entrypoints.test_launcher import events, finish, start
from tests.entrypoints.test_launcher_parts import JOB

pytestmark = pytest.mark.once

GPUS = replace(JOB, gpus=4)


@pytest.mark.parametrize(
    ("version", "file", "size"),
    [
        ("2.13.0+cu130", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_BUFFER_SIZE"),
        ("2.6.0", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ],
)
def test_timeouts_are_recorded_into_a_folder_of_the_output(
    tmp_path: Path, version: str, file: str, size: str
) -> None:
    environ = dict[str, str]()
    flight_recorder.enable(GPUS, str(tmp_path), version, environ)
    assert environ == {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        file: str(tmp_path / "flight-recorder" / "rank_"),
        size: "2000",
    }
    assert (tmp_path / "flight-recorder").is_dir(), "torch creates no folder"


@pytest.mark.parametrize("version", ["2.13.0", "2.6.0"])
def test_what_the_user_has_set_stays_under_either_name(tmp_path: Path, version: str) -> None:
    environ = {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine/rank",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
    }
    flight_recorder.enable(GPUS, str(tmp_path), version, environ)
    assert len(environ) == 3
    assert environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"
    assert not any(tmp_path.iterdir())


def test_the_names_are_those_that_this_torch_reads() -> None:
    """Those of NCCL are in the library for GPUs, which a torch for CPUs lacks; their names are in
    its headers.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    headers = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "distributed" / "c10d"
    code = library.read_bytes() + (headers / "ProcessGroupNCCL.hpp").read_bytes()
    for name in (
        *flight_recorder._FILE,
        *flight_recorder._SIZE,
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_NCCL_HIGH_PRIORITY",
    ):
        assert name.encode() in code, name


def test_ranks_that_were_recorded_in_this_attempt_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "flight-recorder"
    folder.mkdir()
    for rank in (0, 3, 10):
        (folder / f"rank_{rank}").write_bytes(b"x")
    os.utime(folder / "rank_0", (1, 1))  # an earlier job with the same output
    (folder / "rank_4").touch()
    summary = flight_recorder.finish(str(tmp_path), since=2)
    assert "of 2 ranks are in flight-recorder/ of the output" in summary
    assert "`cloudtrain diagnose flight-recorder`" in summary
    assert folder.is_dir()


def test_a_folder_without_records_is_removed_and_nothing_is_told(tmp_path: Path) -> None:
    assert flight_recorder.finish(str(tmp_path), since=0) == ""
    flight_recorder.enable(GPUS, str(tmp_path), "2.13.0", {})
    assert flight_recorder.finish(str(tmp_path), since=0) == ""
    assert not any(tmp_path.iterdir())


@pytest.mark.torchrun
def test_a_job_with_a_record_ends_with_a_warning_that_names_it(tmp_path: Path) -> None:
    """The program here writes the record: NCCL needs GPUs, and does not record a job on CPUs."""
    program = """
import os
print([name for name in os.environ if name.startswith(("TORCH_NCCL_DUMP", "TORCH_FR", "CLOUDTRAIN_RANK"))])
folder = os.path.join(os.environ["CLOUDTRAIN_OUTPUT_DIR"], "flight-recorder")
os.makedirs(folder)
open(os.path.join(folder, "rank_0"), "w").write("last collectives")
"""
    log = finish(start(tmp_path, program))
    assert "[rank 0] []" in log
    warnings = [event["message"] for event in events(log) if event["type"] == "warning"]
    message = "a collective of NCCL has timed out: the last ones of 1 ranks are in flight-recorder/"
    assert [warning.startswith(message) for warning in warnings].count(True) == 1
