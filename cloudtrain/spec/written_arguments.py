"""A program's arguments as job.yaml would say them: `--epochs 3 --amp` is `{epochs: 3, amp: true}`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from cloudtrain.spec.fields import read_arguments
from cloudtrain.spec.yaml_document import parse_scalar

_PLAIN = re.compile(r"[\w./@%+-]+")
"""What a flow mapping can hold without quotes, if YAML also reads it as what it is."""


def written_arguments(argv: Sequence[str]) -> str:
    """YAML in one line, a mapping where it gives exactly these arguments, else a list."""
    pairs = _pairs(argv)
    if pairs is not None:
        text = "{" + ", ".join(f"{key}: {value}" for key, value in pairs.items()) + "}"
        try:
            if read_arguments(parse_scalar(text)).argv == tuple(argv):
                return text
        except ValueError:
            pass
    return json.dumps(list(argv), ensure_ascii=False)


def _pairs(argv: Sequence[str]) -> dict[str, str] | None:
    """The value of each flag as YAML; None where these are no flags, each given once."""
    pairs: dict[str, str] = {}
    words = list(argv)
    while words:
        flag = words.pop(0)
        key, equals, value = flag.removeprefix("--").partition("=")
        if not re.fullmatch(r"--[A-Za-z][\w-]*", flag) or equals or key in pairs:
            return None
        if words and not words[0].startswith("--"):
            value = words.pop(0)
            pairs[key] = value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
            if pairs[key] == value and value.lower() in ("true", "false", "null"):
                pairs[key] = json.dumps(value)
        else:
            pairs[key] = "true"
    return pairs
