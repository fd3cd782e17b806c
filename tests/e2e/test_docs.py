"""A newcomer follows the pages word for word: every session and every snippet is run, and prints what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from make_outputs import difference, play
from make_picture import PICTURE, session, shown
from pages import blocks, name_of, pages

SESSIONS = [page for page in pages() if any(block.language in ("console", "python") for block in blocks(page))]


@pytest.mark.torchrun
@pytest.mark.parametrize("page", SESSIONS, ids=name_of)
def test_a_page_shows_what_its_commands_print(page: Path, tmp_path: Path) -> None:
    wrong = [step.difference() for step in play(page, tmp_path / "reader") if step.difference()]
    assert not wrong, "\n".join([*wrong, f"python docs/make/make_outputs.py --write {name_of(page)}"])


@pytest.mark.torchrun
def test_the_picture_shows_a_session_as_it_is(tmp_path: Path) -> None:
    pictured, now = shown(PICTURE.read_text()), session(tmp_path / "reader")
    assert [command for command, _ in pictured] == [command for command, _ in now]
    for (_, expected), (command, printed) in zip(pictured, now, strict=True):
        assert difference(expected, printed) == [], f"{command}: run python docs/make/make_picture.py"
