"""The service models' patterns, which are Java's, in Python: they compile, and they mean the same."""

from __future__ import annotations

import sys
import unicodedata
from typing import Any

import pytest

from cloudtrain.providers.aws.patterns import compiled

session = pytest.importorskip("botocore.session", reason='pip install "cloudtrain[aws]"')
TAG = r"([\p{L}\p{Z}\p{N}_.:/=+\-@]*)"
OPERATIONS = [
    ("sagemaker", "CreateTrainingJob"),
    ("sagemaker", "CreateHyperParameterTuningJob"),
    ("s3", "PutObject"),
    ("logs", "GetLogEvents"),
]


def matches(pattern: str, text: str) -> bool:
    ours = compiled(pattern, text.isascii())
    assert ours is not None
    # What is promised to be ASCII may always be read as any text.
    general = compiled(pattern, False)
    assert general is not None
    assert bool(ours.fullmatch(text)) == bool(general.fullmatch(text))
    return bool(ours.fullmatch(text))


def reachable(shape: Any, seen: dict[str, Any]) -> dict[str, Any]:
    """Every shape that a value of this shape may hold, by name."""
    if shape.name not in seen:
        seen[shape.name] = shape
        parts: list[Any] = []
        if shape.type_name == "structure":
            parts = list(shape.members.values())
        elif shape.type_name == "list":
            parts = [shape.member]
        elif shape.type_name == "map":
            parts = [shape.key, shape.value]
        for part in parts:
            reachable(part, seen)
    return seen


@pytest.mark.parametrize(("service", "operation"), OPERATIONS)
def test_all_patterns_of_an_operation_compile(service: str, operation: str) -> None:
    shape = session.get_session().get_service_model(service).operation_model(operation).input_shape
    shapes = reachable(shape, {})
    assert len(shapes) > 5
    patterns = {name: each.metadata["pattern"] for name, each in shapes.items() if "pattern" in each.metadata}
    assert {name: pattern for name, pattern in patterns.items() if not compiled(pattern, True)} == {}
    assert {name: pattern for name, pattern in patterns.items() if not compiled(pattern, False)} == {}


def test_of_all_sagemakers_patterns_two_are_no_patterns() -> None:
    model = session.get_session().get_service_model("sagemaker")
    patterns = {name: model.shape_for(name).metadata.get("pattern") for name in model.shape_names}
    odd = {name for name, pattern in patterns.items() if pattern and not compiled(pattern, True)}
    assert odd == {"CustomerMetadataKey", "CustomerMetadataValue"}  # ...${1,128}: a slip in the model


@pytest.mark.parametrize(
    "text", ["", "team", "Größe", "日本語", "a b", "a\u00a0b", "a\u2028b", "²½Ⅷ٣", "a_.:/=+-@", "ß" * 256]
)
def test_a_tag_may_hold_letters_numbers_and_spaces_of_all_languages(text: str) -> None:
    assert matches(TAG, text)


@pytest.mark.parametrize(
    "text", ["5 €", "a\tb", "a\n", "é".replace("é", "e\u0301"), "a,b", "a!", "😀", "\u200b", "\ue000"]
)
def test_a_tag_may_not_hold_signs_tabs_ends_of_lines_and_marks(text: str) -> None:
    assert not matches(TAG, text)


@pytest.mark.parametrize("category", ["L", "N", "Z", "Lu", "P", "S", "M", "C", "Zs", "Pd"])
def test_a_category_is_unicodes_to_the_last_character(category: str) -> None:
    inside, outside = compiled(rf"\p{{{category}}}", False), compiled(rf"[\P{{{category}}}]", False)
    assert inside is not None
    assert outside is not None
    for code in [*range(0x3000), *range(0x3000, sys.maxunicode, 97)]:
        is_one = unicodedata.category(chr(code)).startswith(category)
        assert (inside.fullmatch(chr(code)) is not None) == is_one
        assert (outside.fullmatch(chr(code)) is None) == is_one


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        (r"[\p{Alnum}\-]+", "a-9", True),
        (r"[\p{Alnum}\-]+", "ä", False),
        (r"\p{Punct}", "[", True),
        (r"[^\p{Punct}]", "]", False),
        (r"\P{Punct}", "ä", True),
        (r"[\p{ASCII}]", "ä", False),
        (r"[\P{ASCII}]*", "a", False),
        (r"[^\P{ASCII}]", "a", True),
        (r"\pL\pN", "ä5", True),
        (r"\\p{2}", r"\pp", True),
        (r"\d\w", "٣a", False),
        (r"\d\w", "3ä", False),
        (r"a.b", "a\rb", False),
        (r"(?s)a.b", "a\nb", True),
        (r"[.]", "x", False),
        (r"\Aab\z", "ab", True),
        (r"[a-z]+$", "ab\n", False),
        (r"[\w-_]+", "a-_", True),
        (r"[a-\d]+", "-a1", True),
        (r"[]a]+", "]a", True),
        (r"[[a]+", "[a", True),
        (r"[a|&~]+", "&|~a", True),
        (r"[\x{60}]", "`", True),
        (r"[\u0020-\uD7FF\uD800\uDC00-\uDBFF\uDFFF]+", "a😀", True),
        (r"[\u0020-\uD7FF]+", "😀", False),
    ],
)
def test_what_java_means(pattern: str, text: str, is_match: bool) -> None:
    assert matches(pattern, text) == is_match


@pytest.mark.parametrize("pattern", [r"\p{IsNothing}", r"[a&&[b]]", r"a${2,64}", "(", r"a(?i)b"])
def test_what_python_cannot_say_is_none(pattern: str) -> None:
    assert compiled(pattern, True) is None
    assert compiled(pattern, False) is None
