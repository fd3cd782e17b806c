"""For any change of a job.yaml, `check` answers with a place for each mistake, never a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudtrain.providers.local import machine
from tests.support.in_process import call

VALID = """\
# a job that says nearly everything
name: digits
entrypoint: train.py
args: {epochs: 3, lr: 1.0e-3, amp: bf16, verbose: true, layers: [64, 007], note: "it's"}
source: code
image: {aws: repo/image:1, docker: "python:3.11"}
resources:
  nodes: 2
  gpus: 0
  processes: auto
  instance:
    aws: [ml.p4d.24xlarge, ml.p5.48xlarge]
    azure: Standard_ND96amsr_A100_v4
  spot: true
  disk: 200 GiB
  shm: 16 GiB
inputs:
  train: ./data
  test: &place {local: ./data, aws: s3://bucket/test/, mode: stream}
  more: *place
checkpoints: {every: 10 min, keep: 3, uri: s3://bucket/c}
limits: {max_runtime: 6 h, max_wait: 12 h, max_cost: 50 USD, retries: 2, restarts: 3}
env: {NCCL_DEBUG: WARN, EMPTY: '', COUNT: 3}
secrets: {HF_TOKEN: {aws: "secretsmanager:hf", local: "env:HF_TOKEN"}}
tags: {team: vision}
aws:
  region: us-east-1
  subnets: [a, b]
azure: {compute: c}
"""
PLAIN_WORDS = """
~ null true no 0 -1 1.5 1e9 .inf .nan 007 0x1F [] {} [a] {a:b} '' "" 'x !!float !!set !x &a *a *place <<: ? - | > #
--- ... 6 6h 0s -5GB $5 $ auto nodes gpu H100 local aws env: -m train.py ../x ~x CLOUDTRAIN_X é 🚂 %YAML @ `
"""
WORDS = (
    *PLAIN_WORDS.split(),
    "[" * 60,
    "9" * 5000,
    "0x" + "f" * 5000,
    "x/" * 5000,
    "\x1b[2J",
    "\u202e",
    "\t",
    "\r",
    "\0",
    "\ufeff",
    "\u2028",
    "\x85",
    "\ud800",
    "x" * 300,
)
STRIDE = 4
"""Each word replaces every fourth of the job, another fourth than its neighbours: all are replaced
by many.
"""
WORD = re.compile(r"[^\s,:{}\[\]]+")
Edit = Callable[[str], str]


def cut(text: str, start: int, length: int) -> str:
    start %= max(1, len(text))
    return text[:start] + text[start + length :]


def insert(text: str, start: int, new: str) -> str:
    start %= len(text) + 1
    return text[:start] + new + text[start:]


def line_edit(text: str, number: int, change: Callable[[list[str], int], None]) -> str:
    lines = text.split("\n")
    change(lines, number % len(lines))
    return "\n".join(lines)


def swap(lines: list[str], at: int) -> None:
    lines[at - 1], lines[at] = lines[at], lines[at - 1]


def indent(lines: list[str], at: int, by: int) -> None:
    lines[at] = " " * by + lines[at] if by >= 0 else lines[at][-by:]


def replace_word(text: str, number: int, new: str) -> str:
    words = list(WORD.finditer(text))
    if not words:
        return new
    word = words[number % len(words)]
    return text[: word.start()] + new + text[word.end() :]


ANY = st.integers(0, 10_000)
TEXT = st.text(st.characters(), max_size=6) | st.sampled_from(WORDS)
EDITS: st.SearchStrategy[Edit] = st.one_of(
    st.builds(lambda at, size: lambda text: cut(text, at, size), ANY, st.integers(1, 12)),
    st.builds(lambda at, new: lambda text: insert(text, at, new), ANY, TEXT),
    st.builds(
        lambda at: lambda text: line_edit(text, at, lambda lines, i: lines.__delitem__(i)), ANY
    ),
    st.builds(
        lambda at: lambda text: line_edit(text, at, lambda lines, i: lines.insert(i, lines[i])), ANY
    ),
    st.builds(lambda at: lambda text: line_edit(text, at, swap), ANY),
    st.builds(
        lambda at, by: lambda text: line_edit(text, at, lambda lines, i: indent(lines, i, by)),
        ANY,
        st.integers(-4, 4),
    ),
    st.builds(lambda at, new: lambda text: replace_word(text, at, new), ANY, TEXT),
)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is fed, in a folder where the valid job is valid."""
    folder = tmp_path / "a" / "b" / "job"
    for name in ("code", "data"):
        (folder / name).mkdir(parents=True)
    (folder / "code" / "train.py").write_text("print(1)\n")
    (folder / "data" / "x").write_text("1\n")  # an empty input is refused
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_TOKEN", "x")
    monkeypatch.setattr(
        machine, "visible_gpus", lambda *_: ()
    )  # the real question costs seconds each time
    return folder / "job.yaml"


def assert_answered_in_words(job: Path, text: str) -> None:
    job.write_bytes(text.encode("utf-8", "surrogatepass"))
    result = call("check", "--json")
    assert result.code in (0, 2, 3), f"{result.err}\n{text}"
    assert "Traceback" not in result.out + result.err
    answer = json.loads(result.out)
    if result.code == 2:
        places = [mistake["where"] for mistake in answer["error"].get("mistakes", [])]
        assert all(re.search(r"job\.yaml:\d+:\d+$", place) for place in places), places
        assert places or answer["error"]["message"].startswith("job.yaml: ")


quick = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=True
)


def test_the_job_that_is_mutated_is_right_to_begin_with(job: Path) -> None:
    job.write_text(VALID)
    assert call("check").code == 0


@settings(quick, max_examples=200)
@given(edits=st.lists(EDITS, min_size=1, max_size=6))
def test_a_job_with_random_edits_is_answered_with_a_message(job: Path, edits: list[Edit]) -> None:
    text = VALID
    for edit in edits:
        text = edit(text)
    assert_answered_in_words(job, text)


@settings(quick, max_examples=75)
@given(text=st.text(st.characters(), max_size=200))
def test_random_text_is_answered_with_a_message(job: Path, text: str) -> None:
    assert_answered_in_words(job, text)


@pytest.mark.parametrize("new", WORDS, ids=lambda word: ascii(word[:12]))
def test_a_replaced_word_is_answered_with_a_message(job: Path, new: str) -> None:
    for number in range(WORDS.index(new) % STRIDE, len(WORD.findall(VALID)), STRIDE):
        assert_answered_in_words(job, replace_word(VALID, number, new))
