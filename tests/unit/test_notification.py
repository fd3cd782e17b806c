"""The message at the end of a run."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from cloudtrain.api import notification
from cloudtrain.api.notification import expect, refusals, send
from cloudtrain.errors import SpecError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.store import NOTIFY_MARKS, RunStore
from cloudtrain.settings import load_settings
from cloudtrain.spec.search_space import Choice
from cloudtrain.sweeps import background
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.sweep import DRIVER
from cloudtrain_wire.secret_values import masker
from tests.fakes.messages import Request, Response
from tests.fakes.plain_server import serve
from tests.support.function_trials import FunctionTrials, sweep_of
from tests.support.in_process import call
from tests.support.samples import born, python_program

CAUSE = {"rank": 0, "node": 0, "time": 150.0, "exception": "ValueError", "message": "a < b"}
FAILED = {
    "type": "ended",
    "time": 160.0,
    "state": "failed",
    "error": {**CAUSE, "traceback": "Traceback of a program"},
    "billing": {"usd": 1.5},
}
SUBMITTED = {"type": "submitted", "time": 101.0, "ref": {"url": "https://console/a-1"}}


@pytest.fixture
def run(home: RunStore, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A failed run with one attempt of a message, without pauses."""
    monkeypatch.setattr(notification, "PAUSES", (0,))
    return born(home, "a-1", SUBMITTED, FAILED)


def told_by(run: RunFolder, monkeypatch: pytest.MonkeyPatch, **values: str) -> bool:
    for key, value in values.items():
        monkeypatch.setenv(f"CLOUDTRAIN_NOTIFY_{key.upper()}", value)

    expect(run, load_settings(run.path))
    return send(run)


def without_processes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let no process start; return the words of each."""
    started: list[list[str]] = []

    def start(words: list[str], **_: Any) -> None:
        started.append(words)
        raise OSError("no process can be started")

    monkeypatch.setattr("subprocess.Popen", start)
    return started


def test_a_command_and_both_kinds_of_webhooks_get_the_end(
    run: RunFolder, home: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requests: list[Request] = []

    def answer(request: Request) -> Response:
        requests.append(request)
        return Response(200, [], b"ok")

    program = python_program(
        tmp_path / "tell",
        "import json, sys\nopen('told', 'w').write(sys.argv[-1] + sys.stdin.read())",
    )
    with serve(answer) as port:
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{port}/secret-path")
        values = {"webhook": "env:HOOK", "slack": "env:HOOK", "command": quote(str(program))}
        assert told_by(run, monkeypatch, **values)

    plain, slack = (json.loads(request.body) for request in requests)
    assert plain["text"].splitlines()[1:] == ["1.50 USD at list price", "https://console/a-1"]
    assert (plain["name"], plain["state"], plain["usd"]) == ("digits", "failed", 1.5)
    assert "a &lt; b" in slack["text"]
    assert "Traceback" not in str(requests)
    assert (tmp_path / "told").read_text().startswith(plain["text"] + '{"run": "a-1"')
    assert home.marked(NOTIFY_MARKS) == frozenset()
    assert masker.mask_text(f"http://127.0.0.1:{port}/secret-path") == "***"


def test_a_receiver_that_is_gone_is_asked_again_by_a_later_command(
    run: RunFolder, home: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.getsockname()[1]}/")

    assert not told_by(run, monkeypatch, webhook="env:HOOK")
    assert home.marked(NOTIFY_MARKS) == {"a-1"}

    started = without_processes(monkeypatch)
    for words in (("status", "a-1"), ("list",), ("list",)):
        assert call(*words).code == 0
    assert [words[0] for words in started] == [sys.executable] * 3
    assert {words[-1] for words in started} == {str(run.path)}


def test_a_receiver_that_is_gone_neither_silences_nor_repeats_the_others(
    run: RunFolder, home: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Request] = []

    def answer(request: Request) -> Response:
        requests.append(request)
        return Response(200, [], b"ok")

    with serve(answer) as port:
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{port}/")
        values = {"command": "false", "webhook": "env:HOOK", "slack": "env:GONE"}
        assert not told_by(run, monkeypatch, **values)
        assert not send(run)
        assert len(requests) == 1
        assert home.marked(NOTIFY_MARKS) == {"a-1"}

        os.utime(home.data_dir / NOTIFY_MARKS / "a-1", (0, 0))
        monkeypatch.setattr(notification, "MAX_AGE_SECONDS", 60)
        assert send(run)

    assert home.marked(NOTIFY_MARKS) == frozenset()


def test_without_the_setting_nothing_is_noted(run: RunFolder, home: RunStore) -> None:
    expect(run, load_settings(run.path))
    assert not (home.data_dir / NOTIFY_MARKS).exists()


@pytest.mark.parametrize("address", ["https://hooks.example/T0/B0/x", "HOOK", "env:", "file:/x"])
def test_an_address_is_a_reference(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("CLOUDTRAIN_NOTIFY_SLACK", address)
    with pytest.raises(SpecError, match="expected env:NAME"):
        load_settings(Path.cwd())


def test_status_and_doctor_show_a_receiver_that_does_not_take_it(
    run: RunFolder, home: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(lambda _: Response(404, [], b"gone")) as port:
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{port}/secret-path")
        assert not told_by(run, monkeypatch, command="false", webhook="env:HOOK", slack="env:GONE")

    assert refusals(home.data_dir, "a-1") == [
        "command: it exited with 1",
        "webhook: HTTP Error 404: Not Found",
        "slack: env:GONE is not set to an address",
    ]
    monkeypatch.setattr(notification, "send_in_background", lambda _: None)
    assert "not told    webhook: HTTP Error 404" in call("status", "a-1").out
    result = call("doctor")
    assert "at the end of a-1: HTTP Error 404: Not Found" in result.out
    assert result.code == 2


def test_a_sweep_is_told_once_by_its_driver_and_again_if_nobody_took_it(
    home: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    space = {"lr": Choice((1, 2, 3))}
    definition = sweep_of(space, sampler="grid", trials=3)
    documents = {"spec.yaml": "", "plan.json": "{}"}
    folder = SweepFolder.create(home.data_dir, definition, documents)
    program = python_program(
        tmp_path / "tell", "import sys\nopen('told', 'a').write(sys.argv[-1] + '\\n')"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notification, "PAUSES", (0,))
    monkeypatch.setattr(background, "RunTrials", lambda _, __: FunctionTrials(folder))
    monkeypatch.setattr("sys.argv", ["background", str(folder.path)])
    monkeypatch.setenv("CLOUDTRAIN_NOTIFY_COMMAND", "false")
    assert background.main() == 0
    assert refusals(home.data_dir, folder.sweep_id) == ["command: it exited with 1"]

    with monkeypatch.context() as patched:
        started = without_processes(patched)
        assert "not told" in call("status", folder.sweep_id).out
    assert [words[-2:] for words in started] == [[DRIVER, str(folder.path)]]

    monkeypatch.setenv("CLOUDTRAIN_NOTIFY_COMMAND", quote(str(program)))
    assert background.main() == background.main() == 0
    told = (tmp_path / "told").read_text().splitlines()
    assert len(told) == 1
    assert "all 3 trials have ended; best " in told[0]
    assert home.marked(NOTIFY_MARKS) == frozenset()
