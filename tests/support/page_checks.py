"""A headless browser, and visual mistakes of a page that it detects."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.waiting import HANG_SECONDS

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # it only opens our own files, and root cannot run it otherwise
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",  # which take up width on some machines
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # a page's requests never leave the machine
    "--allow-file-access-from-files",  # the frame below reads the page in it
)
DARK = "--blink-settings=preferredColorScheme=0"
FRAME = """<!DOCTYPE html>
<iframe id="frame" style="border: 0; width: {width}px; height: 900px" src="{page}"></iframe>
<pre id="result"></pre>
<script>
frame.onload = () => {{
  try {{ result.textContent = JSON.stringify({{value: frame.contentWindow.eval({script})}}); }}
  catch (error) {{ result.textContent = JSON.stringify({{error: String(error)}}); }}
}};
</script>
"""
"""Shows a page in a window of a phone's or a desk's width, and what a script finds in it."""


@dataclass(frozen=True, slots=True)
class Browser:
    """Chromium, which shows a local file as a person would see it."""

    program: str
    folder: Path

    def run(self, page: Path, script: str, *, width: int = 1280, dark: bool = False) -> Any:
        """Return the value of a JavaScript expression in a page, as JSON."""
        file = self.folder / "frame.html"
        url = html.escape(page.resolve().as_uri())
        file.write_text(FRAME.format(width=width, page=url, script=json.dumps(script)))
        argv = [self.program, *FLAGS, f"--user-data-dir={self.folder}"]
        argv.append(f"--window-size={width + 100},1000")
        if dark:
            argv.append(DARK)

        shown = subprocess.run(
            [*argv, "--dump-dom", file.as_uri()],
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=True,
        ).stdout
        result = re.search(r'<pre id="result">(.*?)</pre>', shown, re.DOTALL)
        assert result, shown
        answer = json.loads(html.unescape(result[1]))
        assert "value" in answer, answer
        return answer["value"]


@pytest.fixture(scope="session", name="browser")
def browser_fixture() -> Iterator[Browser]:
    """Chromium from CHROME_BIN or PATH, with an empty profile."""
    named = os.environ.get("CHROME_BIN")
    candidates = (named,) if named else NAMES
    program = next(filter(None, map(shutil.which, candidates)), None)
    if program is None:
        pytest.skip("no Chromium is installed here: apt-get install chromium")

    with tempfile.TemporaryDirectory(prefix="cloudtrain-browser-") as folder:
        yield Browser(program, Path(folder))


def parsed(html: str) -> ElementTree.Element:
    """Return a page as a tree. Fail if it is not well-formed."""
    first, _, remaining = html.partition("\n")
    assert first == "<!DOCTYPE html>"
    return ElementTree.fromstring(remaining)


# Visual mistakes of a page, detected in a browser: texts that are pale, cut off, or overlap.

TEXTS = """
const parts = color => color.match(/[\\d.]+/g).map(Number);
const texts = [...document.querySelectorAll('body *')].filter(one =>
  [...one.childNodes].some(child => child.nodeType === 3 && child.textContent.trim())
  && !one.closest('title, style, script, desc') && one.checkVisibility());
const told = one => one.textContent.trim().replace(/\\s+/g, ' ').slice(0, 60);
"""

PALE = """
const solid = one => {
  for (; one; one = one.parentElement) {
    const found = parts(getComputedStyle(one).backgroundColor);
    if (found[3] !== 0) return found;
  }
  return [255, 255, 255];
};
const light = color => {
  const [r, g, b] = color.slice(0, 3).map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = one => {
  const style = getComputedStyle(one), behind = solid(one);
  const front = parts(one.closest('svg') ? style.fill : style.color), alpha = front[3] ?? 1;
  const [a, b] = [light(front.slice(0, 3).map((v, at) => v * alpha + behind[at] * (1 - alpha))), light(behind)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
return texts.filter(one => contrast(one) < 4.5).map(one => `${told(one)}: ${contrast(one).toFixed(2)}`);
"""
"""Contrast of 4.5 to the background. Source: WCAG 2.2, success criterion 1.4.3, level AA."""

CUT = """
const past = (inner, outer) => inner.left < outer.left - 1 || inner.right > outer.right + 1
  || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
return texts.filter(one => {
  const svg = one.closest('svg');
  if (svg) return past(one.getBoundingClientRect(), svg.getBoundingClientRect());
  return getComputedStyle(one).overflowX !== 'visible' && one.scrollWidth > one.clientWidth;
}).map(told);
"""

OVERLAPPING = """
const drawn = texts.map(one => [one, one.getBoundingClientRect(), one.closest('svg')]).filter(([, , svg]) => svg);
return drawn.flatMap(([one, a, svg], at) => drawn.slice(at + 1).filter(([, b, other]) => svg === other
  && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2).map(([two]) => `${told(one)} / ${told(two)}`));
"""


MISTAKES = f"""(() => {{
  document.querySelectorAll('details').forEach(one => {{ one.open = true }});
  const root = document.documentElement;
  {TEXTS}
  return {{
    'asks for': performance.getEntriesByType('resource').map(one => one.name),
    'wider than the screen': root.scrollWidth > root.clientWidth ? [String(root.scrollWidth)] : [],
    'pale': (() => {{ {PALE} }})(),
    'cut off': (() => {{ {CUT} }})(),
    'on each other': (() => {{ {OVERLAPPING} }})(),
  }};
}})()"""
"""Opens folded parts, and returns the texts of each kind of mistake."""


def looks(browser: Browser, page: Path) -> list[str]:
    """Return the visual mistakes of a page, on a phone in the dark and on a desk by day."""
    problems = []
    for width, dark in ((390, True), (1280, False)):
        found = browser.run(page, MISTAKES, width=width, dark=dark)
        problems += [f"{width}: {kind}: {text}" for kind, texts in found.items() for text in texts]

    return problems
