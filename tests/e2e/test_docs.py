"""A newcomer follows the pages word for word: every session and every snippet is run, and prints
what is shown.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from make_outputs import difference, play
from make_picture import CHARACTER, PICTURE, session, shown
from pages import blocks, name_of, pages
from tests.support.browser import Browser

SESSIONS = [
    page
    for page in pages()
    if any(block.language in ("console", "python") for block in blocks(page))
]


@pytest.mark.torchrun
@pytest.mark.parametrize("page", SESSIONS, ids=name_of)
def test_a_page_shows_what_its_commands_print(page: Path, tmp_path: Path) -> None:
    wrong = [step.difference() for step in play(page, tmp_path / "reader") if step.difference()]
    assert not wrong, "\n".join(
        [*wrong, f"python docs/make/make_outputs.py --write {name_of(page)}"]
    )


@pytest.mark.torchrun
def test_the_picture_shows_a_session_as_it_is(tmp_path: Path) -> None:
    pictured = shown(PICTURE.read_text())
    reader = session(tmp_path / "reader")
    assert [command for command, _ in pictured] == [command for command, _ in reader]
    for (_, expected), (command, printed) in zip(pictured, reader, strict=True):
        assert difference(expected, printed) == [], (
            f"{command}: run python docs/make/make_picture.py"
        )


COLUMN_WIDTHS = """[...document.querySelectorAll('tspan')].map(span => {
  const text = span.textContent;
  const characters = [...Array(span.getNumberOfChars()).keys()];
  const widths = characters.map(number => span.getExtentOfChar(number).width);
  return {text, columns: text.length, widths};
})"""
"""Of each coloured span of the picture: its text, and the width of each character drawn."""


def test_every_character_of_the_picture_has_its_own_column(browser: Browser) -> None:
    spans = browser.open(PICTURE).run(COLUMN_WIDTHS)
    assert spans
    for span in spans:
        assert len(span["widths"]) == span["columns"], span["text"]
        assert span["widths"] == pytest.approx([CHARACTER] * span["columns"], abs=0.1), span["text"]


def test_a_slow_machine_may_print_what_it_waits_for() -> None:
    shown = "digits-a1b2\n  epoch 1\nsucceeded in 20 s\n"
    slow = "digits-c3d4\n  waiting for peers for 1 min 5 s\n  epoch 1\nsucceeded in 2 min\n"
    assert difference(shown, slow) == []
    assert difference(shown, slow.replace("epoch", "step")) != []
