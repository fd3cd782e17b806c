"""`diagnose` reads log files as they come: packed, in other encodings, as JSON, torn, or binary."""

from __future__ import annotations

import gzip
import io
import json
from random import Random

import pytest

from cloudtrain.diagnosis import log_text
from cloudtrain.diagnosis.failure import Diagnosis, diagnose_lines
from cloudtrain.diagnosis.log_text import read_log

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/opt/ml/code/train.py", line 41, in <module>',
    "    step()",
    "pkg.errors.ShardMissing: shard 3 is gone",
]
PLAIN = ("starting\n" + "\n".join(TRACEBACK) + "\n").encode()
CAUSE = "the program raised ShardMissing: shard 3 is gone (/opt/ml/code/train.py:41)"


def diagnosed(log: bytes) -> Diagnosis:
    notes: list[str] = []
    return diagnose_lines(read_log(io.BytesIO(log), "x.log", notes), notes)


def events(indent: int | None = None) -> bytes:
    """As `aws logs get-log-events` prints them."""
    entries = [
        {"timestamp": 1763632801000, "message": line, "ingestionTime": 1763632802000}
        for line in TRACEBACK
    ]
    return json.dumps({"events": entries, "nextForwardToken": "f/1"}, indent=indent).encode()


FORMS = {
    "plain": (PLAIN, 5),
    "gzip": (gzip.compress(PLAIN), 5),
    "gzip of two parts": (gzip.compress(PLAIN[:40]) + gzip.compress(PLAIN[40:]), 5),
    "emptied while it was written": (b"\0" * 9_000 + b"\n" + PLAIN, 6),
    "events of CloudWatch": (events(indent=4), 20),
    "docker": (
        b"\n".join(
            json.dumps({"log": f"{line}\n", "stream": "stderr"}).encode() for line in TRACEBACK
        ),
        4,
    ),
    "kubernetes": (
        "\n".join(f"2026-11-20T10:00:01.1234Z stderr F {line}" for line in TRACEBACK).encode(),
        4,
    ),
    "aws logs tail": (
        "\n".join(f"2026-11-20T10:00:01+00:00 a-1/algo-1-17 {line}" for line in TRACEBACK).encode(),
        4,
    ),
    "after a line of bytes": (b"\x01\x02\x03" * 50 + b"\n" + PLAIN, 6),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_failure_is_found_in_whatever_form_its_log_is_kept(form: str) -> None:
    log, line = FORMS[form]
    diagnosis = diagnosed(log)
    assert diagnosis.cause == CAUSE
    assert [evidence.line for evidence in diagnosis.evidence] == [line]


def test_a_message_that_only_informs_does_so_in_json_too() -> None:
    line = json.dumps({"level": "INFO", "message": "CUDA out of memory"})
    assert diagnosed(line.encode()).rule is None
    assert diagnosed(line.replace("INFO", "ERROR").encode()).rule is not None


PROGRAM = b"\x7fELF" + bytes(range(32)) * 9 + b"DBE\n" + b"uncorrectable ECC error\0\0\0\0" * 9


@pytest.mark.parametrize(
    "log", [Random(1).randbytes(100_000), PROGRAM], ids=["random", "a program"]
)
def test_bytes_are_no_evidence(log: bytes) -> None:
    diagnosis = diagnosed(log)
    assert (diagnosis.rule, diagnosis.evidence, diagnosis.last_lines) == (None, (), ())
    assert "most of it is not text: is it a log?" in diagnosis.notes[0]


def test_an_empty_log_is_said_to_be_empty_and_not_to_be_without_a_failure() -> None:
    assert diagnosed(b"").cause == diagnosed(b"\n\n").cause == diagnosed(gzip.compress(b"")).cause
    assert diagnosed(b"").cause == "there is no text in it"


def test_a_damaged_or_unfinished_archive_is_read_as_far_as_it_goes() -> None:
    packed = gzip.compress(PLAIN * 50)
    assert "not complete" in diagnosed(packed[:-20]).notes[0]
    damaged = diagnosed(gzip.compress(PLAIN) + b"more")
    assert (damaged.cause, damaged.notes) == (
        CAUSE,
        ("the compressed log is damaged: what comes after that place was not read",),
    )


def test_what_unpacks_to_a_thousand_times_its_size_is_kept_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HEAD_BYTES", "TAIL_BYTES"):
        monkeypatch.setattr(log_text, name, 1 << 18)
    diagnosis = diagnosed(gzip.compress(b"a line of text\n" * 100_000 + PLAIN))
    assert (diagnosis.cause, diagnosis.evidence[0].line) == (CAUSE, 100_005)
    assert "in the middle of the log were not read" in diagnosis.notes[0]
