"""The pages: every link leads somewhere, every page is found, and the reference is what the code
says.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

import make_reference
from pages import DOCS, ROOT, anchors, links, name_of, pages, prose

PAGES = pytest.mark.parametrize("page", pages(), ids=name_of)


def target(page: Path, link: str) -> Path:
    return (page.parent / link.partition("#")[0]).resolve() if not link.startswith("#") else page


def test_the_readme_is_short_and_says_first_where_the_project_stands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 200
    assert "No job has run in a real account yet" in "\n".join(lines[:20])


@PAGES
def test_a_page_has_one_title(page: Path) -> None:
    titles = re.findall(r"^# .+$", prose(page), re.MULTILINE)
    assert len(titles) == 1
    assert page.read_text().startswith(titles[0])


@PAGES
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        assert target(page, link).exists(), link
        fragment = link.partition("#")[2]
        assert not fragment or fragment in anchors(target(page, link)), link


@pytest.mark.parametrize("page", [page for page in pages() if DOCS in page.parents], ids=name_of)
def test_a_page_of_the_site_links_to_pages_of_the_site_only(page: Path) -> None:
    inside = [link for link in links(page) if not re.match(r"https?://", link)]
    assert [link for link in inside if DOCS not in target(page, link).parents] == []


def test_the_index_lists_every_page() -> None:
    index = DOCS / "README.md"
    listed = {target(index, link) for link in links(index)}
    assert set(DOCS.rglob("*.md")) - listed == {index}


def test_the_site_has_every_page_in_the_order_of_the_index() -> None:
    index = DOCS / "README.md"
    site = re.findall(r"^ *- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    listed = [target(index, link).relative_to(DOCS).as_posix() for link in links(index)]
    assert site == list(dict.fromkeys(["README.md", *listed]))


@pytest.mark.parametrize("name", make_reference.PAGES)
def test_the_reference_is_what_the_code_says(name: str) -> None:
    written = (make_reference.FOLDER / name).read_text()
    assert written == make_reference.PAGES[name](), "run make docs"


def test_an_error_or_variable_without_a_meaning_stops_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(make_reference.JOB_VARIABLES, "CLOUDTRAIN_RUN_ID")
    with pytest.raises(LookupError, match="CLOUDTRAIN_RUN_ID"):
        make_reference.environment()


ARCHITECTURE = DOCS / "architecture.md"


def folders_of(*parents: str) -> set[str]:
    """Return the subfolders, without hidden and git-ignored ones."""
    ignored = [".*/", *(ROOT / ".gitignore").read_text().split()]
    unlisted = {
        f"{parent}{path.name}/"
        for parent in parents
        for path in (ROOT / parent).iterdir()
        if path.is_dir()
    }
    return {
        name
        for name in unlisted
        if not any(fnmatch(f"{Path(name).name}/", pattern) for pattern in ignored)
    }


def test_the_architecture_is_short_and_names_every_folder_as_it_is() -> None:
    text = ARCHITECTURE.read_text()
    assert len(text.splitlines()) <= 80
    named = set(re.findall(r"`([\w./-]+/)`", text))
    assert [folder for folder in named if not (ROOT / folder).is_dir()] == []
    packages = (
        "cloudtrain/",
        "cloudtrain/providers/",
        "entrypoints/",
        "entrypoints/cloudtrain_launcher/",
    )
    assert folders_of("", *packages) <= named


def test_the_architecture_names_every_folder_of_tests() -> None:
    row = next(
        line for line in ARCHITECTURE.read_text().splitlines() if line.startswith("| `tests/`")
    )
    assert {f"tests/{name}/" for name in re.findall(r"`(\w+)`", row)} == folders_of("tests/")
