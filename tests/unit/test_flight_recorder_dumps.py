"""Dumps of the flight recorder name the ranks that did not come; a hostile pickle does nothing."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.diagnosis.failure import Diagnosis, with_flight_record
from cloudtrain.diagnosis.flight_recorder import load_plain, read_dumps

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "flight-recorder"
WORLD = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}


def entry(
    number: int, operation: str = "nccl:all_reduce", group: str = "0", **values: Any
) -> dict[str, Any]:
    return {
        "process_group": (group, "default_pg"),
        "collective_seq_id": number,
        "profiling_name": operation,
        "state": "scheduled",
        "is_p2p": False,
        "time_created_ns": number,
        **values,
    }


def write(
    folder: Path, rank: int, *entries: dict[str, Any], groups: dict[str, Any] | None = None
) -> None:
    value = {"version": "2.9", "pg_config": groups or WORLD, "entries": list(entries)}
    (folder / f"rank_{rank}").write_bytes(pickle.dumps(value, protocol=2))


@pytest.mark.parametrize("scenario", ["gpu_error_1st", "lock_gil_1st"])
def test_real_dumps_of_sixteen_ranks_match_their_reference(
    scenario: str,
) -> None:
    if not SHARED.is_dir():
        pytest.skip("the recorded dumps are not beside this checkout")
    _, row = (SHARED / scenario / "reference.txt").read_text().strip().splitlines()
    columns = [column.strip() for column in row.split("|")]
    record = read_dumps(SHARED / scenario)
    assert record.missing == tuple(map(int, columns[-1].split(",")))
    assert columns[2] == f"nccl:{record.collectives[0].operation}"
    assert record.collectives[0].group.startswith(columns[1].partition(",")[0])
    assert not record.unread or all(re.search(r"reference|fault", name) for name in record.unread)


def test_a_rank_that_did_not_come_is_named_with_those_that_wait_for_it(tmp_path: Path) -> None:
    for rank, last in ((0, 8), (1, 7), (2, 8)):
        write(
            tmp_path,
            rank,
            *(entry(number, state="completed") for number in range(5, 8)),
            *[entry(8)] * (last == 8),
        )
    record = read_dumps(tmp_path)
    assert (
        record.sentence
        == "rank 1 did not come to all_reduce, number 8 of default_pg [0, 1, 2]; ranks 0, 2 wait"
        " for it"
    )
    diagnosis = with_flight_record(
        Diagnosis(cause="only a time-out is known", confidence="none"), record
    )
    assert (diagnosis.cause, diagnosis.restart) == (record.sentence, None)


def test_a_rank_that_waits_for_a_missing_one_is_a_victim(tmp_path: Path) -> None:
    groups = {
        "0": WORLD["0"],
        "1": {"name": "1", "desc": "tensor", "ranks": "[1, 2]"},
    }
    write(tmp_path, 0, entry(8))
    write(tmp_path, 1, entry(7, state="completed"), entry(3, "nccl:broadcast", "1"), groups=groups)
    write(
        tmp_path,
        2,
        entry(7, state="completed"),
        entry(2, "nccl:broadcast", "1", state="completed"),
        groups=groups,
    )
    assert read_dumps(tmp_path).missing == (2,), (
        "rank 1 has not come to number 8 either, since it waits for rank 2"
    )


def test_different_operations_and_ranks_without_a_dump_are_told(tmp_path: Path) -> None:
    write(tmp_path, 0, entry(8))
    write(tmp_path, 1, entry(8, "nccl:broadcast"))
    record = read_dumps(tmp_path)
    assert (record.missing, record.absent) == ((), (2,))
    assert record.mismatches == (
        "number 8 of default_pg [0, 1, 2]: rank 0 in all_reduce, rank 1 in broadcast",
    )
    notes = with_flight_record(Diagnosis(cause="", confidence="none"), record).notes
    assert "rank 2 left no dump: a rank that failed may be among them" in notes


class Bomb:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploded",)


HOSTILE = {
    "code": pickle.dumps({"entries": [Bomb()]}),
    "a class": pickle.dumps(Path("x")),
    "memory": b"\x80\x02Nr\xff\xff\xff\xff.",
    "an extension": b"\x80\x02\x82\x01.",
    "nothing": b"",
    "no pickle": b"\x7fELF\x02\x01\x01" + bytes(100),
    "another value": pickle.dumps([1, 2], protocol=2),
    "wrong parts": pickle.dumps({"pg_config": {"0": 7}, "entries": 7}, protocol=2),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_dump_is_refused_and_does_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank_0").write_bytes(HOSTILE[kind])
    record = read_dumps(tmp_path)
    assert (record.ranks, len(record.unread)) == ((), 1)
    assert [path.name for path in tmp_path.iterdir()] == ["rank_0"]


def test_only_plain_values_come_out_of_a_pickle() -> None:
    value = {"a": [1, 2.5, None, True, ("b", {})], "c": 1 << 40}
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert load_plain(pickle.dumps(value, protocol)) == value
