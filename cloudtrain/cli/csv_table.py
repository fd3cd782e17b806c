"""Tables as CSV, whose texts no spreadsheet runs as a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from cloudtrain.cli.terminal import one_line

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
"""First characters of a formula; a spreadsheet drops a tab or a line end before one."""


def csv_table(rows: Iterable[Sequence[object]], *, line_end: str = "\n") -> str:
    """Return rows as CSV. True and false are as in job.yaml; control characters are escaped."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=line_end)
    for row in rows:
        writer.writerow([_cell(value) for value in row])

    return text.getvalue()


def _cell(value: object) -> object:
    """Return a value, or a text with a quotation mark in front if it would be a formula."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    if value.startswith(_FORMULA_STARTS):
        value = f"'{value}"

    return one_line(value)
