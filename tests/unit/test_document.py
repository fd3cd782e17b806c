"""A YAML file becomes plain values by the rules of YAML 1.2, and every value knows its place."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import SpecError, UsageError
from cloudtrain.spec.sources import read_document
from cloudtrain.spec.yaml_document import Document, parse_document, parse_scalar


def read(text: str) -> Document:
    return parse_document(text, name="job.yaml")


def mistakes(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(text)
    return [mistake.render() for mistake in caught.value.issues]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("4", 4),
        ("-3", -3),
        ("+3", 3),
        ("007", 7),
        ("0o17", 15),
        ("0x1F", 31),
        ("1.10", 1.1),
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("", None),
        # what YAML 1.1 would have made something else of
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("2026-11-21", "2026-11-21"),
        ("1.2.3", "1.2.3"),
        ("tRue", "tRue"),
        ("'4'", "4"),
        ('"true"', "true"),
        ("6 h", "6 h"),
        ("é 漢字 🚂", "é 漢字 🚂"),
    ],
)
def test_a_word_means_what_yaml_1_2_says(written: str, value: Any) -> None:
    parsed = read(f"a: {written}\n").values["a"]
    assert (parsed, isinstance(parsed, bool)) == (value, isinstance(value, bool))


def test_a_number_of_ten_thousand_digits_stays_text() -> None:
    digits = "9" * 10_000
    assert read(f"a: {digits}\n").values["a"] == digits


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes("\ufeffa: 1\n".encode())
    assert read_document(path).values == {"a": 1}


def test_a_merge_key_is_refused_and_a_quoted_one_is_a_key() -> None:
    (mistake,) = mistakes("a: &x {k: 1}\nb:\n  <<: *x\n")
    assert mistake.startswith("job.yaml:3:3: b: << is not part of YAML 1.2")
    assert read("b: {'<<': 1}\n").values["b"] == {"<<": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", "job.yaml:1:1: is empty"),
        ("\n\n  word\n", "job.yaml:3:3: expected a mapping (key: value), got 'word'"),
        ("x: {a: 1, a: 2}\n", "job.yaml:1:11: x.a: is given twice (first on line 1)"),
        ("a:\n  b:\n\tc: 1\n", "a tab in the indentation; YAML allows only spaces"),
        ("a: [1\n", "job.yaml:2:1: is not YAML: did not find expected ',' or ']'"),
        ("a: 'x\n", "is not YAML: found unexpected end of stream"),
        ("a: *x\n", "job.yaml:1:4: is not YAML: found undefined alias"),
        ("? [a, b]\n: 1\n", "job.yaml:1:3: a key must be a plain word"),
        ("a: x\x1by\n", "job.yaml:1:5: is not YAML: contains the control character U+001B"),
        ("a: !!python/name:os.system x\n", "job.yaml:1:4: a: the tag "),
        ("a: !!set {b}\n", "job.yaml:1:4: a: the tag "),
        ("a: !mine x\n", "job.yaml:1:4: a: the tag '!mine' is not allowed"),
        ("a: !!float x\n", "job.yaml:1:4: a: is tagged as float, but is not one"),
        (
            "a: " + "[" * 60 + "]" * 60,
            "has too many or too deeply nested values (or an endless alias)",
        ),
        ("a: " + "[" * 300_000, "has too many or too deeply nested values (or an endless alias)"),
        ("a:\n" + "- " * 200_000, "has too many or too deeply nested values (or an endless alias)"),
        ("a: " + "{b: " * 20_000, "has too many or too deeply nested values (or an endless alias)"),
    ],
    ids=lambda text: text[:24] if len(text) < 100 else f"{text[:8]} x {len(text)}",
)
def test_what_is_no_plain_mapping_is_told_with_its_place(text: str, message: str) -> None:
    assert message in "\n".join(mistakes(text))


def test_a_file_without_an_end_is_not_read_to_its_end() -> None:
    with pytest.raises(UsageError, match="Not a regular file but a device"):
        read_document(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("1.10", 1.1),
        ("true", True),
        ("[a, 2]", ["a", 2]),
        ("{a: 1}", {"a": 1}),
        ("6 h", "6 h"),
        ("", ""),
        (" word ", "word"),
        ("'  kept  '", "  kept  "),
        ("#fff", "#fff"),
        ("a #1", "a #1"),
        ("a\nb", "a\nb"),
        ("---", "---"),
        ("&a", "&a"),
        ("*a", "*a"),
        ("!a", "!a"),
        ("@a", "@a"),
        ("[a", "[a"),
        ("it's", "it's"),
        ("a=b", "a=b"),
        ("[" * 9000, "[" * 9000),
    ],
    ids=lambda text: str(text)[:12],
)
def test_a_flag_s_value_is_yaml_or_else_the_text_itself(text: str, value: Any) -> None:
    assert parse_scalar(text) == value
