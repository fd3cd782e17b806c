"""A headless browser, and visual mistakes of a page that it detects."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.waiting import HANG_SECONDS

# A browser for tests: headless Chromium shows a local file as a person would see it, and tells what
# it fetched.
# It is driven over two pipes by its DevTools protocol: no port is open, no other package is needed,
# and it ends with the process of the test, however that ends.
# https://chromedevtools.github.io/devtools-protocol/

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # it only opens our own files, and root cannot run it otherwise
    "--no-zygote",  # its children stay its own, and are gone when it is
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",  # which take up width on some machines
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # a page's requests never leave the machine
    "--remote-debugging-pipe",  # it reads from descriptor 3 and writes to 4
)
PHONE_WIDTH = 600
"""Up to this width (CSS pixels) the browser lays a page out as a phone does: by its viewport
element.
"""


class Browser:
    """One Chromium, with an empty profile that is gone when it is closed."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="cloudtrain-browser-")
        (theirs_in, self._to), (self._from, theirs_out) = os.pipe(), os.pipe()
        argv = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", program, *FLAGS]
        self._process = subprocess.Popen(
            [*argv, f"--user-data-dir={self._profile}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs_in, theirs_out],
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._unread = b""
        self._calls = 0
        self._pages: dict[str, Page] = {}

    def open(self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """A file, loaded and drawn in a window of that size (CSS pixels). Several may be open at
        once.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, file)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        size = {
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": width <= PHONE_WIDTH,
        }
        page.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.load()
        return page

    def call(self, method: str, /, session: str = "", **parameters: Any) -> Any:
        """Return the browser's answer.

        Raise AssertionError with its reason for a refusal, or TimeoutError.
        """
        self._calls += 1
        request = {
            "id": self._calls,
            "method": method,
            "params": parameters,
            **({"sessionId": session} if session else {}),
        }
        os.write(self._to, json.dumps(request).encode() + b"\0")
        while (answer := self.read()).get("id") != request["id"]:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def read(self) -> Any:
        """Read the next message; pass events of a page to the page."""
        deadline = time.monotonic() + HANG_SECONDS
        while b"\0" not in self._unread:
            if not select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium has not answered for {HANG_SECONDS} s")
            if not (data := os.read(self._from, 1 << 20)):
                raise ChildProcessError(
                    f"Chromium has ended, with exit code {self._process.wait()}"
                )
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\0")
        message = json.loads(line)
        if page := self._pages.get(message.get("sessionId", "")):
            page.hear(message)
        return message

    def close(self) -> None:
        """End it and all of its processes, and remove its profile."""
        with suppress(OSError, ChildProcessError):
            self.call("Browser.close")
        os.close(self._to)
        os.close(self._from)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)


class Page:
    """One file in its own window."""

    def __init__(self, browser: Browser, session: str, file: Path) -> None:
        self._browser = browser
        self._session = session
        self.url = file.resolve().as_uri()
        self.errors: list[str] = []
        """Warnings and errors of the console, and errors that no script has caught.
        """
        self.fetched: list[str] = []
        """Every address that it has asked for beside its own file, data: and blob: left out. All of
        them failed that name another machine.
        """
        self._loaded = False

    def call(self, method: str, **parameters: Any) -> Any:
        """A method of the protocol, for this page."""
        return self._browser.call(method, session=self._session, **parameters)

    def load(self) -> None:
        """Load the file, and wait until it is drawn."""
        self.call("Page.navigate", url=self.url)
        while not self._loaded:
            self._browser.read()
        self.settle()

    def settle(self) -> None:
        """Wait until what has been changed is drawn."""
        self.run(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
        )

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in this page, as JSON; wait for a promise."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, _describe(result["exceptionDetails"])
        return result["result"].get("value")

    def hear(self, message: Any) -> None:
        """Something has happened in it."""
        parameters = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.errors.append(
                    " ".join(str(arg.get("value", arg)) for arg in parameters["args"])
                )
            case "Runtime.exceptionThrown":
                self.errors.append(_describe(parameters["exceptionDetails"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.errors.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if url != self.url and not url.startswith(("data:", "blob:")):
                    self.fetched.append(url)


def _describe(details: Any) -> str:
    """Describe an error of a script."""
    return str(details.get("exception", {}).get("description") or details["text"])


def chromium() -> str | None:
    """Return the path of a Chromium: from CHROME_BIN or PATH; or None."""
    named = os.environ.get("CHROME_BIN")
    candidates = (named,) if named else NAMES
    return next(filter(None, map(shutil.which, candidates)), None)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Provide a browser until the end of the block. Skip the test without an installed Chromium."""
    program = chromium()
    if program is None:
        pytest.skip("no Chromium is installed here: apt-get install chromium")
    browser = Browser(program)
    try:
        yield browser
    finally:
        browser.close()


@pytest.fixture(scope="session", name="browser")
def browser_fixture() -> Iterator[Browser]:
    """One browser for all tests of this process: it takes a second to start."""
    with open_browser() as browser:
        yield browser


def parsed(html: str) -> ElementTree.Element:
    """Return a page as a tree. Fail if it is not well-formed."""
    first, _, remaining = html.partition("\n")
    assert first == "<!DOCTYPE html>"
    return ElementTree.fromstring(remaining)


# Visual mistakes of a page, detected in a browser: texts that are pale, cut off, or overlap.

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
