"""The pages as data: README.md and docs/, their headings, links and code blocks, for tests and the
scripts beside it.

A comment before a block says what a reader does with it: `<!-- file: job.yaml -->` saves it under
that name, `<!-- plan: aws, azure -->` plans it for these providers (`aws on local` is a rehearsal).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MORE = ("entrypoints/README.md", "docker/README.md")
"""Pages outside docs/ that lead a reader on."""

FENCE = re.compile(
    r"(?:^<!-- (?P<notes>[^>]*) -->\n+)?^(?P<indent>"
    r" *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"(?<!`)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
NOTES = ("file", "plan")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    """The page's path below the repository's root."""
    line: int
    language: str
    text: str
    notes: dict[str, str]
    """Text of the comment before it, by the words of `NOTES`."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page, README.md first."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *(ROOT / name for name in MORE)]


def name_of(page: Path) -> str:
    """`docs/guides/data.md`."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page. ValueError for a comment before one that says what nobody
    understands.
    """
    text = page.read_text(encoding="utf-8")
    page_blocks = []
    for match in FENCE.finditer(text):
        notes = _notes(match["notes"] or "")
        line = text.count("\n", 0, match.start("language")) + 1
        block = Block(name_of(page), line, match["language"], match["text"], notes)
        if set(notes) - set(NOTES):
            raise ValueError(
                f"{block}: a comment may say {' and '.join(NOTES)}, not {sorted(notes)}"
            )
        page_blocks.append(block)
    return page_blocks


def all_blocks(*languages: str) -> list[Block]:
    """The blocks of all pages in these languages."""
    return [block for page in pages() for block in blocks(page) if block.language in languages]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The fragments that links to a page may name, as GitHub makes them of its headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """The targets of a page's links and pictures."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return [match["target"] for match in LINK.finditer(text)] + re.findall(
        r'<img[^>]* src="([^"]+)"', text
    )


def commands(block: Block) -> list[str]:
    """The commands of a block of shell: those after `$ ` where it shows a session, else all lines
    but comments.
    """
    text = block.text.replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    if block.language == "console":
        return [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in lines if line and not line.startswith("#")]


def _notes(text: str) -> dict[str, str]:
    pairs = [part.partition(":") for part in text.split(";") if part.strip()]
    return {name.strip(): value.strip() for name, _, value in pairs}
