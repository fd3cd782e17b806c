"""CSV tables: names and settings of a job are text for a spreadsheet, never a formula."""

from __future__ import annotations

import csv
import io

import pytest

from cloudtrain.cli.csv_table import csv_table


@pytest.mark.parametrize(
    "text",
    ["=1+2", "+1", "-2+3", "@SUM(1+1)", "\tx", "\r=1", "＝1+2", '=HYPERLINK("http://host","x")'],
)
def test_a_text_that_a_spreadsheet_would_run_gets_a_quotation_mark(text: str) -> None:
    (row,) = csv.reader(io.StringIO(csv_table([[text, -2.5, f"a{text}"]])))
    assert row[0].startswith("'")
    assert row[1] == "-2.5"
    assert row[2].startswith("a")


def test_other_values_stay_as_they_are() -> None:
    rows = [["loss", "a,b", True, None, 1e-3, ""]]
    assert csv_table(rows) == 'loss,"a,b",true,,0.001,\n'
