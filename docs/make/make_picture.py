"""Draws docs/run.svg, the picture in README.md: a session in a terminal, run now. `python
docs/make/make_picture.py`.

The commands are really run, with the job of the guide to SageMaker. The picture has a background of
its own, so that it can be read on light and dark pages, and no font: every reader's own monospaced
one is stretched to the same columns.
"""

from __future__ import annotations

import html
import re
import tempfile
from pathlib import Path

from make_outputs import Session
from pages import DOCS, blocks

PICTURE = DOCS / "run.svg"
GUIDE = DOCS / "guides" / "sagemaker.md"
COMMANDS = (
    "cloudtrain plan --provider aws",
    "cloudtrain submit --as aws --set resources.gpus=0",
)
TITLE = "cloudtrain: a SageMaker job is planned with its price, then rehearsed on this machine"

CHARACTER = 7.8
LINE = 19
SIZE = 13
MARGIN = 18
BAR = 34
"""In pixels: a column, a line, the letters, the space around the text, the window's title bar."""
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
BACKGROUND = "#161b22"
BORDER = "#3d444d"
TEXT = "#d1d7e0"
DIM = "#9198a1"
BLUE = "#79c0ff"
GREEN = "#56d364"
YELLOW = "#e3b341"
RULES = (
    re.compile(r"^(?P<green>succeeded)(?P<text>.*)"),
    re.compile(r"^(?P<green>\$)(?P<bold> .*)"),
    re.compile(r"^(?P<text>  )(?P<yellow>note:)(?P<dim>.*)"),
    re.compile(r"^(?P<text>  \w+ +[\d.e-]+ )(?P<green>[▁-█]+)(?P<text2>.*)"),
    re.compile(r"^(?P<bold>[a-z]\S*)(?P<text>  .*)"),
    re.compile(r"^(?P<blue>  [a-z]+)(?P<text> {2,}.*| .*~.*)"),
    re.compile(r"^(?P<dim>  \(.*)"),
)
"""How a line is coloured: by the names of the groups of the first pattern that fits."""
COLOURS = {
    "green": GREEN,
    "dim": DIM,
    "yellow": YELLOW,
    "blue": BLUE,
    "text": TEXT,
    "bold": "#f0f6fc",
}


def session(folder: Path) -> list[tuple[str, str]]:
    """Commands, each with its present output."""
    shell = Session(folder)
    for block in blocks(GUIDE):
        if "file" in block.notes:
            shell.save(block.notes["file"], block.text)
    return [(command, shell.run(command)) for command in COMMANDS]


def drawn(steps: list[tuple[str, str]]) -> str:
    """The session as SVG."""
    lines = [
        line for command, output in steps for line in (f"$ {command}", *output.splitlines(), "")
    ][:-1]
    width = round(2 * MARGIN + CHARACTER * max(map(len, lines)))
    height = BAR + LINE * len(lines) + MARGIN
    text = "\n".join(
        _line(line, BAR + LINE * (number + 1) - 4) for number, line in enumerate(lines) if line
    )
    dots = "".join(
        f'<circle cx="{MARGIN + 18 * n}" cy="17" r="5" fill="{BORDER}"/>' for n in range(3)
    )
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>{TITLE}</title>
<!-- Drawn by docs/make/make_picture.py from what the commands printed. -->
<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="{BACKGROUND}" stroke="{BORDER}"/>
{dots}
<g font-family="{FONTS}" font-size="{SIZE}">
{text}
</g>
</svg>
"""


def shown(svg: str) -> list[tuple[str, str]]:
    """The commands that a picture shows, each with its output."""
    lines = [
        html.unescape(re.sub(r"<[^>]+>", "", line))
        for line in svg.splitlines()
        if line.startswith("<text")
    ]
    steps: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("$ "):
            steps.append((line[2:], ""))
        else:
            steps[-1] = (steps[-1][0], f"{steps[-1][1]}{line}\n")
    return steps


def _line(line: str, y: int) -> str:
    """One line as one element; each colour is a span that begins at its own column."""
    match = next((candidate for pattern in RULES if (candidate := pattern.match(line))), None)
    spans = (
        [(match.start(name), match[name], COLOURS[name.rstrip("2")]) for name in match.groupdict()]
        if match
        else []
    )
    parts = [
        f'<tspan x="{MARGIN + CHARACTER * start:.1f}" textLength="{CHARACTER * len(text):.1f}"'
        f' lengthAdjust="spacingAndGlyphs" fill="{colour}">{html.escape(text)}</tspan>'
        for start, text, colour in spans or [(0, line, TEXT)]
        if text
    ]
    # Chromium heeds xml:space on this element alone, and would merge spaces into one.
    return f'<text xml:space="preserve" y="{y}">{"".join(parts)}</text>'


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        PICTURE.write_text(drawn(session(Path(scratch))), encoding="utf-8")
