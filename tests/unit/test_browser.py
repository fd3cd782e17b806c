"""The browser of tests: it reports the errors and requests of a page, and asks no machine."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import Browser, chromium
from tests.support.limits import HANG_SECONDS
from tests.support.page_checks import appearance
from tests.support.waiting import eventually

PAGE = """<!DOCTYPE html><meta name="viewport" content="width=device-width">
<style>body { background: rgb(255, 255, 255) } @media (prefers-color-scheme: dark) { body { background: rgb(1, 2, 3) } }
div { height: 3000px }</style><div id="it">as written</div>"""


def written(folder: Path, script: str = "", more: str = "") -> Path:
    file = folder / "a page.html"
    file.write_text(f"{PAGE}{more}<script>{script}</script>")
    return file


@pytest.mark.parametrize(
    ("width", "dark", "colour"), [(390, True, "rgb(1, 2, 3)"), (1280, False, "rgb(255, 255, 255)")]
)
def test_a_page_has_the_width_and_the_colours_that_were_asked_for(
    tmp_path: Path, browser: Browser, width: int, dark: bool, colour: str
) -> None:
    page = browser.open(written(tmp_path, "it.textContent = 'as scripted'"), width=width, dark=dark)
    assert page.run("[innerWidth, getComputedStyle(document.body).backgroundColor]") == [
        width,
        colour,
    ]
    assert "as scripted" in page.html()
    png = page.screenshot(tmp_path / "page.png").read_bytes()
    assert int.from_bytes(png[16:20]) == width
    assert int.from_bytes(png[20:24]) > 3000, "all of it, not the window alone"
    assert (page.errors, page.fetched) == ([], [])


def test_what_a_page_does_wrong_is_told(tmp_path: Path, browser: Browser) -> None:
    page = browser.open(written(tmp_path, "console.error('the', 3); throw new Error('uncaught')"))
    assert page.errors[0] == "the 3"
    assert page.errors[1].startswith("Error: uncaught")
    with pytest.raises(AssertionError, match="missing is not defined"):
        page.run("missing()")


def test_what_a_page_asks_for_is_told_and_never_asked_of_a_machine(
    tmp_path: Path, browser: Browser
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/data.json"
        script = f"var done = fetch('{url}').then(() => 'came', () => 'failed')"
        page = browser.open(
            written(tmp_path, script, '<img src="https://example.com/a.png"><img src="data:,">')
        )
        assert page.run("done") == "failed"
        assert sorted(page.fetched) == [url, "https://example.com/a.png"]
        with pytest.raises(BlockingIOError):
            server.accept()


def test_what_is_wrong_with_how_a_page_looks_is_found(tmp_path: Path, browser: Browser) -> None:
    body = """<p style="color: #999">too pale</p><p style="width: 500px">too wide</p><details><summary>more</summary>
    <p style="width: 20px; overflow: hidden; white-space: nowrap">a long line</p></details>
    <svg viewBox="0 0 100 100" width="100"><text x="5" y="20">one</text><text x="10" y="22">another</text>
    <text x="80" y="60">out of it</text><text y="90" fill="none" style="fill: #fafafa">pale too</text></svg>
    <div style="background: #000; color: #fff">well <span style="color: #ccc">readable</span></div>"""
    texts = appearance(browser.open(written(tmp_path, "console.warn('careful')", body), width=390))
    assert texts.pop(1).endswith("wide on a screen of 390")
    assert texts == [
        "console: careful",
        "pale: too pale: 2.85",
        "pale: pale too: 1.04",
        "cut off: a long line",
        "cut off: out of it",
        "on each other: one / another",
    ]


@pytest.mark.browser
def test_it_ends_with_its_process_and_leaves_no_other(tmp_path: Path) -> None:
    if chromium() is None:
        pytest.skip("no Chromium is installed here: apt-get install chromium")
    code = (
        "import signal; from tests.support.browser import *; b = Browser(chromium());"
        " b.call('Browser.getVersion')"
    )
    argv = [
        sys.executable,
        "-c",
        f"{code}; print(b._process.pid, b._profile, flush=True); signal.pause()",
    ]
    root = Path(__file__).parents[2]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout
        pid, _, profile = process.stdout.readline().strip().partition(" ")
        process.kill()
    assert eventually(lambda: not running(int(pid)), HANG_SECONDS)
    subprocess.run(["rm", "-rf", profile], check=True)


def running(group: int) -> bool:
    """Return whether a process of that group runs; one that has ended but was not waited for does
    not count.
    """
    process_ids = subprocess.run(
        ["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    return any(
        line.split()[0] == str(group) and "Z" not in line.split()[1]
        for line in process_ids.splitlines()
    )
