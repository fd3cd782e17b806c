"""The tasks and their options. Standard library only: `--help` does not import torch.

A key is a value of `--task`. An option `image-size` is `--image-size` on the command line, and the
parameter `image_size` of the task's `build`.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any, NamedTuple


class Option(NamedTuple):
    """An option of one task."""

    reader: Callable[[str], Any]
    """Converts the text; ArgumentTypeError says what is expected."""
    default: Any
    """None: the task decides, as the help says."""
    help: str


def one_of(*names: str) -> Callable[[str], str]:
    """Return a reader of one of these values; ArgumentTypeError for any other text."""

    def read(text: str) -> str:
        if text not in names:
            raise ArgumentTypeError(f"expected {' or '.join(names)}, got {text!r}")
        return text

    return read


def yes_or_no(text: str) -> bool:
    """Read yes (True) or no (False); ArgumentTypeError for any other text."""
    return one_of("yes", "no")(text) == "yes"


def multiple_of(unit: int, limit: int) -> Callable[[str], int]:
    """Return a reader of multiples of `unit`, up to `limit`; else ArgumentTypeError."""

    def read(text: str) -> int:
        if not text.isdecimal() or len(text) > 9 or not 0 < int(text) <= limit or int(text) % unit:
            raise ArgumentTypeError(f"expected a multiple of {unit} up to {limit}, got {text!r}")
        return int(text)

    return read


HANDWRITTEN = Option(
    one_of("mnist", "digits"),
    "mnist",
    "mnist|digits: $CLOUDTRAIN_INPUT_MNIST, or scikit-learn's [mnist]",
)

OPTIONS: dict[str, dict[str, Option]] = {
    "digits": {},
    "mnist": {"data": HANDWRITTEN},
    "keras-mnist": {"data": HANDWRITTEN},
    "resnet50": {
        "size": Option(
            one_of("full", "tiny"), "full", "full|tiny: tiny is the same code, for a CPU [full]"
        ),
    },
    "gpt": {
        "size": Option(one_of("tiny", "small", "gpt2-124m"), "tiny", "tiny|small|gpt2-124m [tiny]"),
        "context": Option(
            multiple_of(8, 65536), None, "tokens per sequence, a multiple of 8 [the size's]"
        ),
        "data": Option(
            one_of("text", "tokens", "synthetic"),
            "text",
            "text|tokens|synthetic: $CLOUDTRAIN_INPUT_TEXT, else Python's source;"
            " $CLOUDTRAIN_INPUT_TOKENS [text]",
        ),
        "tied": Option(
            yes_or_no, None, "yes|no: one matrix for embedding and head [gpt2-124m: yes]"
        ),
    },
}
