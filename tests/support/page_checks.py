"""Visual mistakes of a page, detected in a browser: texts that are pale, cut off, or overlap."""

from __future__ import annotations

from pathlib import Path

from tests.support.browser import Browser, Page

LEAST_CONTRAST = 4.5
"""Between a text and its background. Source: WCAG 2.2, success criterion 1.4.3, level AA."""

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
return texts.filter(one => contrast(one) < LEAST).map(one => `${told(one)}: ${contrast(one).toFixed(2)}`);
"""

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


def appearance(page: Page) -> list[str]:
    """Return the visual mistakes of a page, a sentence each.

    Open folded parts (`details`) first, and leave them open.
    """
    page.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    page.settle()
    wide, width = page.run(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    return [
        *[f"console: {error}" for error in page.errors],
        *[f"asks for {url}" for url in page.fetched],
        *([f"is {wide} wide on a screen of {width}"] if wide > width else []),
        *[f"pale: {text}" for text in _matches(page, PALE.replace("LEAST", str(LEAST_CONTRAST)))],
        *[f"cut off: {text}" for text in _matches(page, CUT)],
        *[f"on each other: {text}" for text in _matches(page, OVERLAPPING)],
    ]


def _matches(page: Page, check: str) -> list[str]:
    texts: list[str] = page.run(f"(() => {{ {TEXTS} {check} }})()")
    return texts


def looks(browser: Browser, file: Path) -> dict[str, list[str]]:
    """Return the mistakes of the page, for each kind of screen that has some."""
    screens = [(390, True), (1280, False)]
    problems = {
        f"{width} {'dark' if dark else 'light'}": appearance(
            browser.open(file, width=width, dark=dark)
        )
        for width, dark in screens
    }
    return {screen: wrong for screen, wrong in problems.items() if wrong}
