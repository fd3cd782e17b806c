"""Runs the commands that a page shows, as a reader would, and holds what they print against the
page.

    python docs/make/make_outputs.py docs/getting-started.md          shows where the page is out of date
    python docs/make/make_outputs.py --write docs/getting-started.md  writes what was printed into the page

A page is one session: a folder, a separate home, the files that it says to save. In an output, a
line `…` stands for any lines; numbers, times, run ids and curves may differ.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pages import FENCE, ROOT, Block, blocks

ANY = "…"
TIMEOUT = 600

VARIABLE = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    # Printed by a slow machine alone.
    (
        re.compile(
            r"^ +(?:waiting for (?:peers|another node)|installing|setting up|restoring|evaluating"
            r"|saving) for \d.*\n",
            re.MULTILINE,
        ),
        "",
    ),
    (re.compile(r"[▁▂▃▄▅▆▇█]+"), "CURVE"),
    (re.compile(r"\b[0-9a-f]{8,}"), "HEX"),
    (re.compile(r"\b(?:\d+ (?:h|min|ms|s) )*\d+ (?:h|min|ms|s)\b"), "TIME"),
    (re.compile(r"\b([a-z][a-z0-9-]*)-[a-z0-9]{4}\b"), r"\1-ID"),
    (re.compile(r"\b\d+(?:\.\d+)? [kMG]?B\b"), "SIZE"),
    (re.compile(r"\d+(?:[.,]\d+)*(?:e[-+]?\d+)?"), "N"),
    (re.compile(r" {2,}"), "  "),
)
"""Differences between two runs that do not count."""


@dataclass(frozen=True)
class Step:
    """One command of a page, with the output in the page and the present one."""

    block: Block
    command: str
    expected: str
    printed: str

    def difference(self) -> str:
        """Differences of the two; empty when the page is right."""
        lines = difference(self.expected, self.printed)
        return "\n".join([f"{self.block}: $ {self.command}", *lines]) if lines else ""


class Session:
    """A reader's shell: one folder, one home, one command after the other."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.folder = folder / "work"
        for path in (self.home, self.folder):
            path.mkdir(parents=True)

    def environment(self) -> dict[str, str]:
        """Nothing of the environment outside but its PATH, with this Python's programs first."""
        foreign = (
            "AWS_",
            "AZURE_",
            "CLOUDTRAIN_",
            "XDG_",
            "PET_",
            "TORCHELASTIC_",
            "GITHUB_",
            "PYTEST_",
            "COV_",
        )
        env = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
        return {**env, "HOME": str(self.home), "PATH": path, "NO_COLOR": "1", "COLUMNS": "100"}

    def save(self, name: str, text: str) -> None:
        """A file that the page says to save."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, command: str) -> str:
        """Output of a command on both streams. A `cd` counts for those after it."""
        marker = "<<folder>>"
        process = subprocess.run(
            ["bash", "-c", f"{command}\necho '{marker}'\"$PWD\""],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        text, _, folder = process.stdout.rpartition(marker)
        self.folder = Path(folder.strip())
        return text.replace(str(self.home), "~").replace(str(ROOT), "~/cloudtrain")

    def run_python(self, text: str) -> str:
        """Run a snippet: what it printed if it failed, else nothing."""
        self.save("snippet.py", text)
        printed = self.run("python snippet.py && echo '<<done>>'")
        (self.folder / "snippet.py").unlink()
        return "" if "<<done>>" in printed else printed


def play(page: Path, folder: Path) -> list[Step]:
    """Run a page's sessions (its `console` blocks) from top to bottom."""
    session = Session(folder)
    page_blocks = blocks(page)
    if any("examples/" in block.text for block in page_blocks):  # a reader has the repository
        (session.folder / "examples").symlink_to(ROOT / "examples")
    steps = []
    for block in page_blocks:
        if "file" in block.notes:
            session.save(block.notes["file"], block.text)
        elif block.language == "python":
            steps.append(Step(block, "python", "", session.run_python(block.text)))
        elif block.language == "console":
            for command, expected in split(block.text):
                steps.append(Step(block, command, expected, session.run(command)))
    return steps


def split(text: str) -> list[tuple[str, str]]:
    """A session's commands, each with the output below it."""
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def rewrite(page: Path, steps: list[Step]) -> None:
    """Put what was printed into the page. A right output stays, also one with `…`."""
    fresh: dict[int, list[str]] = {}
    for step in (step for step in steps if step.block.language == "console"):
        output = step.expected if not step.difference() else step.printed
        fresh.setdefault(step.block.line, []).append(f"$ {step.command}\n{output}")
    text = page.read_text(encoding="utf-8")
    for match in reversed(list(FENCE.finditer(text))):
        line = text.count("\n", 0, match.start("language")) + 1
        if line in fresh:
            text = text[: match.start("text")] + "".join(fresh[line]) + text[match.end("text") :]
    page.write_text(text, encoding="utf-8")


def difference(expected: str, printed: str) -> list[str]:
    """Lines of an output that differ from the page, but for `VARIABLE`."""
    if re.fullmatch(_pattern(expected), _steady(printed)):
        return []
    shown, got = (_steady(text).splitlines() for text in (expected, printed))
    return list(difflib.unified_diff(shown, got, "shown", "printed now", lineterm="", n=1))


def _steady(text: str) -> str:
    """The text without what may differ, each line with its end."""
    for pattern, stands_for in VARIABLE:
        text = pattern.sub(stands_for, text)
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def _pattern(expected: str) -> str:
    """The output as a regular expression: a line `…` stands for any lines, also for none."""
    lines = _steady(expected).splitlines()
    return "".join(
        r"(?:.*\n)*?" if line.strip() == ANY else re.escape(line).replace(ANY, ".*") + r"\n"
        for line in lines
    )


def main(words: list[str]) -> int:
    """The command line: 1 when a page is out of date and was not written."""
    wrong = 0
    for name in [word for word in words if word != "--write"]:
        with tempfile.TemporaryDirectory() as folder:
            steps = play(Path(name).resolve(), Path(folder))
        differences = [step.difference() for step in steps if step.difference()]
        print("\n".join(differences) or f"{name}: {len(steps)} commands print what it says")
        if "--write" in words:
            rewrite(Path(name).resolve(), steps)
        wrong += len(differences)
    return 1 if wrong and "--write" not in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
