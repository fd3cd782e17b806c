"""The kinds of shapes that CreateTrainingJob does not have: unions, documents, times, bytes,
secrets, recursion.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import pytest

from cloudtrain.issues import Keys
from cloudtrain.providers.aws.shapes import violations

model = pytest.importorskip("botocore.model", reason='pip install "cloudtrain[aws]"')
MODEL: dict[str, Any] = {
    "S": {
        "type": "structure",
        "required": ["Token"],
        "members": {
            "Token": {"shape": "Text", "idempotencyToken": True},
            "Either": {"shape": "Union"},
            "Any": {"shape": "Document"},
            "When": {"shape": "When"},
            "Bytes": {"shape": "Bytes"},
            "Rate": {"shape": "Rate"},
            "Secret": {"shape": "Secret"},
            "Odd": {"shape": "Odd"},
            "Self": {"shape": "S"},
        },
    },
    "Union": {
        "type": "structure",
        "union": True,
        "members": {"A": {"shape": "Text"}, "B": {"shape": "Text"}},
    },
    "Document": {"type": "structure", "document": True, "members": {}},
    "When": {"type": "timestamp"},
    "Bytes": {"type": "blob", "max": 3},
    "Rate": {"type": "double", "min": 0.5, "max": 1},
    "Secret": {"type": "string", "sensitive": True, "pattern": "[a-z]+"},
    "Odd": {"type": "string", "pattern": "[^-]|={3,}${1,4096}"},
    "Text": {"type": "string"},
}


@pytest.mark.parametrize(
    "value",
    [
        {"Either": {"A": "x"}},
        {"Any": {"a": [1, 2.5, None, True, "x", {}]}},
        {"Any": None},
        {"Any": "text"},
        *(
            {"When": when}
            for when in (
                datetime(2026, 1, 1, tzinfo=UTC),
                1.5,
                10,
                "2026-01-01T00:00:00Z",
                "1767225600",
            )
        ),
        *({"Bytes": data} for data in (b"abc", "abc", bytearray(b"a"), BytesIO(b"much more"))),
        *({"Rate": rate} for rate in (1, 0.5, Decimal("0.7"))),
        {"Secret": "abc"},
        {"Odd": "a pattern that nobody can compile is passed over"},
        {"Self": {"Token": "x", "Self": {"Token": "y"}}},
    ],
)
def test_what_other_services_take_is_right(value: dict[str, Any]) -> None:
    assert violations(model.ShapeResolver(MODEL).get_shape_by_name("S"), value) == []


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ({"Either": {}}, ("Either",), "expected exactly one of A, B, got none"),
        (
            {"Either": {"A": "x", "B": "y"}},
            ("Either",),
            "expected exactly one of A, B, got A and B",
        ),
        ({"Either": {"C": "x"}}, ("Either", "C"), "is not a known member"),
        ({"Any": {"a": [object()]}}, ("Any", "a", 0), "expected what JSON can hold, got object"),
        (
            {"When": "tomorrow"},
            ("When",),
            "expected a time (ISO 8601, or a Unix timestamp), got text",
        ),
        ({"When": True}, ("When",), "expected a time (ISO 8601, or a Unix timestamp), got true"),
        ({"Bytes": b"abcd"}, ("Bytes",), "is 4 bytes long, at most 3"),
        ({"Bytes": 5}, ("Bytes",), "expected bytes, got a whole number"),
        ({"Rate": 2}, ("Rate",), "is 2, at most 1"),
        ({"Rate": 0.25}, ("Rate",), "is 0.25, at least 0.5"),
        ({"Rate": True}, ("Rate",), "expected a number, got true"),
        ({"Rate": float("nan")}, ("Rate",), "expected a number, got nan"),
        ({"Secret": "HUSH"}, ("Secret",), "this text does not match [a-z]+"),
        ({"Self": {}}, ("Self", "Token"), "is missing"),
    ],
)
def test_what_other_services_refuse_is_found(
    value: dict[str, Any], path: Keys, message: str
) -> None:
    shape = model.ShapeResolver(MODEL).get_shape_by_name("S")
    assert [(violation.path, violation.message) for violation in violations(shape, value)] == [
        (path, message)
    ]
