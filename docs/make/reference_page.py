"""How the pages of the reference are written: a page, a table, words as code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any


def page(title: str, text: str) -> str:
    """A page with its title, and a remark that it is made."""
    note = (
        "<!-- Made from the code by docs/make/make_reference.py: change the code, then run it. -->"
    )
    return f"# {title}\n\n{note}\n\n{text.rstrip()}\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; an empty cell stays empty."""
    cells = [
        list(head),
        *([text.replace("|", "\\|").replace("\n", " ") for text in row] for row in rows),
    ]
    cells.insert(1, ["---"] * len(cells[0]))
    return "".join("| " + " | ".join(row).replace("  |", " |") + " |\n" for row in cells)


def first(value: Any) -> str:
    """The first paragraph of a docstring, on one line."""
    return (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")


def literal(text: str) -> str:
    """Words such as CLOUDTRAIN_INPUT_<NAME> as code: a browser takes `<NAME>` for markup."""
    return re.sub(r"(?<![`\w])\w*<\w+>", r"`\g<0>`", text)
