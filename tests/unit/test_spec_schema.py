"""A YAML file becomes plain values with places, and the schema for editors agrees."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import BaseModel

import cloudtrain
from cloudtrain.errors import UsageError
from cloudtrain.spec.load import spec_from_document
from cloudtrain.spec.model import JobSpec, json_schema, section_models, spec_model
from cloudtrain.spec.sources import read_document
from cloudtrain.spec.yaml_document import Document, parse_document, parse_scalar
from cloudtrain.units import (
    DURATION_PATTERN,
    MONEY_PATTERN,
    SIZE_PATTERN,
    parse_duration,
    parse_money,
    parse_size,
)
from tests.support.in_process import call

# The JSON Schema for editors of job.yaml agrees with the model.

PACKAGE = Path(cloudtrain.__file__).parent
EXAMPLES = [
    PACKAGE / "cli" / "starter" / "job.yaml",
    *sorted((PACKAGE.parent / "examples").rglob("job.yaml")),
]

EVERYTHING = """\
name: digits
entrypoint: train.py
args: {epochs: 3, lr: 1.0e-3, amp: bf16, verbose: true, layers: [1, 2]}
source: .
image: {aws: x, docker: y}
resources:
  nodes: 2
  gpus: 8
  gpu: [A100-80GB, H100]
  processes: auto
  spot: true
  disk: 200 GiB
  shm: 16 GiB
inputs:
  train: ./data
  test: {aws: "s3://bucket/x", local: ./x, mode: stream}
checkpoints: {every: 10 min, keep: 3, uri: "s3://b/c"}
limits: {max_runtime: 6 h, max_wait: 12 h, max_cost: 50 USD, retries: 2, restarts: 3}
launch: {require_group: true}
env: {NCCL_DEBUG: WARN, N: 3, FLAG: true}
secrets: {HF_TOKEN: {aws: "secretsmanager:hf", azure: "keyvault:v/hf", local: "env:HF_TOKEN"}}
tags: {team: vision}
aws: {region: us-east-1, role: r, bucket: b, subnets: [a], security_groups: [b], kms_key: k}
azure: {subscription: s, resource_group: g, workspace: w, compute: c}
"""


def complaints(text: str) -> list[str]:
    validator = Draft202012Validator(json_schema())
    return [
        f"{error.json_path}: {error.message}"
        for error in validator.iter_errors(yaml.safe_load(text))
    ]


def properties(schema: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    return dict(schema.get("properties", {}))


def keys_of(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


SECTIONS = {
    name: field.annotation
    for name, field in JobSpec.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}


def test_it_is_a_valid_schema_with_a_name_of_its_own() -> None:
    Draft202012Validator.check_schema(json_schema())
    assert json_schema()["$id"] == "urn:cloudtrain:job.schema.json"


@pytest.mark.parametrize(
    ("pattern", "parse", "texts"),
    [
        (
            DURATION_PATTERN,
            parse_duration,
            ["90 s", "1 h 30 min", "2D", "1.5 hours", "10MIN", "6", "6 hodr", "h", ""],
        ),
        (
            SIZE_PATTERN,
            parse_size,
            ["200 GiB", "1tb", "512 mib", "1.5 GB", "200", "3 pb", "1 GB 2 MB", "GiB"],
        ),
        (
            MONEY_PATTERN,
            parse_money,
            ["50 USD", "$50", "12.50 usd", "50$", "50", "50 EUR", "usd", "$"],
        ),
    ],
    ids=["durations", "sizes", "money"],
)
def test_editors_take_a_quantity_where_the_reader_does(
    pattern: str, parse: Callable[[str], float], texts: list[str]
) -> None:
    def is_read(text: str) -> bool:
        try:
            return parse(text) > 0
        except ValueError:
            return False

    assert [re.search(pattern, text) is not None for text in texts] == list(map(is_read, texts))
    assert {*map(is_read, texts)} == {True, False}


def test_init_writes_the_schema_and_the_line_by_which_editors_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("init", "my-job").code == 0
    first = (tmp_path / "my-job" / "job.yaml").read_text().splitlines()[0]
    named = first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads((tmp_path / "my-job" / named).read_text()) == json_schema()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_the_examples_follow_it(path: Path) -> None:
    assert complaints(path.read_text()) == []


def test_a_spec_that_says_everything_follows_it() -> None:
    assert complaints(EVERYTHING) == []


def test_a_spec_that_says_everything_is_read(tmp_path: Path) -> None:
    document = parse_document(EVERYTHING, name="job.yaml")
    assert spec_from_document(document, tmp_path, look=False)[0].resources.nodes == 2


def test_schema_and_model_know_the_same_keys() -> None:
    keys = {"extends", *keys_of(spec_model(section_models()))}
    assert set(json_schema()["properties"]) == keys


@pytest.mark.parametrize("section", SECTIONS)
def test_schema_and_model_know_the_same_keys_of_each_section(section: str) -> None:
    schema = json_schema()
    model = SECTIONS[section]
    assert model is not None
    assert set(properties(schema["properties"][section], schema)) == keys_of(model)


@pytest.mark.parametrize(
    "text",
    [
        "nmae: x",
        "resources: {node: 1}",
        "limits: {max_runtimes: 1 h}",
        "checkpoints: {evry: 1 h}",
        "aws: {regoin: x}",
        "azure: {x: y}",
        "inputs: {a: {gcp: x}}",
        "secrets: {A: {gcp: x}}",
        "resources: {instance: {gcp: x}}",
    ],
)
def test_an_unknown_key_is_refused(text: str) -> None:
    assert len(complaints(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "resources: {nodes: two}",
        "resources: {nodes: 0}",
        "resources: {processes: many}",
        "limits: {max_runtime: 6}",
        "limits: {max_cost: 50}",
        "resources: {spot: 1}",
        "env: [a]",
        "inputs: {a: 3}",
        "source: ''",
        "resources: {gpus: 8, gpu: A100-80}",
        "resources: {gpus: 8, gpu: [H100, a100]}",
        "resources: {disk: 200 GiBi}",
        "limits: {max_runtime: 6 hodr}",
        "limits: {max_cost: 50 EUR}",
        "checkpoints: {every: soon}",
    ],
)
def test_a_wrong_value_is_refused(text: str) -> None:
    assert len(complaints(text)) == 1


# A YAML file becomes plain values by the rules of YAML 1.2, and every value knows its place.


def read(text: str) -> Document:
    return parse_document(text, name="job.yaml")


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


def test_a_quoted_merge_key_is_a_key() -> None:
    assert read("b: {'<<': 1}\n").values["b"] == {"<<": 1}


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
