"""Output obeys no text of others, fits 80 columns, and shows errors at their line."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.cli import main
from cloudtrain.cli.output import print_json, table
from cloudtrain.cli.terminal import log_text, one_line, printable, wrapped
from cloudtrain.runs.store import RunStore
from tests.repo.tools import ROOT
from tests.support.in_process import call
from tests.support.samples import BORN, write_events

# Output never contains text that a terminal would obey or reorder, whoever wrote it; JSON keeps its
# values.

NASTY = {
    "title": "\x1b]0;owned\x07",
    "clear": "\x1b[2J\x1b[1;1H",
    "colour": "\x1b[32msucceeded\x1b[0m\x1b[31mred",
    "backspace": "bad\b\b\bgood",
    "carriage return": "bad\rgood",
    "C1": "\x9b2J\x90q\x9c",
    "override": "\u202egnp.exe",
    "isolate": "\u2066x\u2069\u200f\u061c",
    "line separator": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "invisible": "\ufeff\u2060\U000e0041",
    "half a character": "\udc9b",
    "forged row": "x\n  cost     nothing: it runs here",
}
EVIL = "".join(NASTY.values())


def unsafe(text: str) -> list[str]:
    """Return the characters that are neither visible nor a plain space; painted states, labels and
    marks are ours.
    """
    painted = r"succeeded|failed|stopped|running|stopping|error:|warning:|note:|hint:|\^+"
    plain = re.sub(rf"\x1b\[3[0-7]m({painted})\x1b\[0m", "", text)
    return [
        sign
        for sign in plain
        if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp", "Cs") and sign not in "\n\t"
    ]


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_what_a_terminal_would_obey_is_shown_and_not_done(text: str) -> None:
    assert unsafe(printable(text)) == []
    assert unsafe(one_line(text)) == []
    assert "\n" not in one_line(text)


def test_ordinary_text_of_any_language_stays_as_it_is() -> None:
    text = "é ü 中文 עברית العربية 🚂 👩\u200d🔬 ━─▁█ …\ttab\nnext"
    assert (printable(text), printable(printable(text))) == (text, text)


@given(st.text(st.characters(), max_size=40))
def test_printing_twice_escapes_once(text: str) -> None:
    assert printable(printable(text)) == printable(text)


@pytest.mark.parametrize(
    ("line", "on_a_terminal", "elsewhere"),
    [
        ("\x1b[1;31mloss\x1b[0m 3", "\x1b[1;31mloss\x1b[0m 3\x1b[0m", "loss 3"),
        ("\x1b[38;5;8mgrey", "\x1b[38;5;8mgrey\x1b[0m", "grey"),
        (" 10%|#\r 20%|##\r", " 20%|##", " 20%|##"),
        ("\x1b[2Jgone\x1b[31m", "\\x1b[2Jgone\x1b[31m\x1b[0m", "\\x1b[2Jgone"),
        ("\x9b31mC1", "\\x9b31mC1", "\\x9b31mC1"),
        ("plain", "plain", "plain"),
    ],
    ids=["colour", "palette", "progress bar", "clear", "C1 colour", "plain"],
)
def test_a_log_line_may_keep_its_colours_and_nothing_else(
    line: str, on_a_terminal: str, elsewhere: str
) -> None:
    assert (log_text(line, colours=True), log_text(line, colours=False)) == (
        on_a_terminal,
        elsewhere,
    )


@given(st.lists(st.text(st.sampled_from("a \t\r\x1b[31m2Jé\u202e"), max_size=9), min_size=1))
def test_lines_of_a_log_are_escaped_together_as_they_are_one_by_one(lines: list[str]) -> None:
    for colours in (True, False):
        one_by_one = [log_text(line, colours=colours) for line in lines]
        assert log_text("\n".join(lines), colours=colours) == "\n".join(one_by_one)


def test_json_escapes_and_keeps_every_value(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({EVIL: [EVIL, "é中🚂"]})
    output = capsys.readouterr().out
    assert json.loads(output) == {EVIL: [EVIL, "é中🚂"]}
    assert (unsafe(output), "é中🚂" in output) == ([], True)


SPEC = {
    "name": "digits",
    "entrypoint": "train.py",
    "args": {EVIL.replace("\udc9b", ""): 1, "note": EVIL.replace("\udc9b", "")},
    "inputs": {"train": {"local": "./data" + EVIL.replace("\udc9b", "").replace("/", "")}},
    "env": {"A": EVIL.replace("\udc9b", "")},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec full of such texts, and a run whose every text is one."""
    store = RunStore(tmp_path / "data")
    plan = {"provider": "local", "spec": {EVIL: EVIL}}
    write_events(store.create("b-2", {"plan.json": json.dumps(plan)}), {**BORN, "name": EVIL})
    folder = store.create(
        "a-1", {"plan.json": json.dumps({"provider": "local"}), "request.json": "{}"}
    )
    born = {"type": "submitting", "time": 1.0, "name": EVIL, "provider": "local", "contract": EVIL}
    error = {
        "rank": 0,
        "node": 0,
        "time": 2.0,
        "exception": EVIL,
        "message": EVIL,
        "file": EVIL,
        "line": 3,
    }
    write_events(
        folder,
        {**born, "nodes": 1, "processes": 1},
        {"type": "phase", "time": 1.0, "phase": EVIL},
        {"type": "node_started", "time": 1.0, "node": 0},
        *(
            {"type": "metrics", "time": 1.5, "rank": 0, "values": {EVIL: n, "x" + EVIL: EVIL}}
            for n in range(3)
        ),
        {"type": "error", **error, "code": EVIL, "traceback": EVIL},
        {"type": "restarted", "time": 1.6, "attempt": 1, "why": EVIL},
        {"type": "stop_requested", "time": 1.7, "reason": EVIL},
        {"type": "checkpoint", "time": 1.7, "step": 3, "path": EVIL},
        {
            "type": "ended",
            "time": 3.0,
            "state": "failed",
            "reason": EVIL,
            "error": {**error, "code": EVIL},
        },
    )
    log = EVIL.replace("\n", " ").encode("utf-8", "surrogateescape")
    (folder.path / "logs" / "node-0.log").write_bytes(
        b"2026-11-21T02:04:34.447Z [rank 0] " + log + b"\n"
    )
    odd = folder.path / "model" / "\u202egnp.exe\x1b[2J\n"
    odd.parent.mkdir()
    odd.write_text("")
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(store.data_dir))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.yaml").write_text(json.dumps(SPEC))
    (tmp_path / "job" / "train.py").write_text("")
    monkeypatch.chdir(tmp_path / "job")
    return tmp_path


COMMANDS = [
    "list",
    "status a-1",
    "logs a-1",
    "logs a-1 --json",
    "metrics a-1",
    "metrics a-1 --csv",
    "compare a-1 b-2",
    "attach a-1",
    "wait a-1",
    "stop a-1",
    "status a-1 --json",
    "fetch a-1 into",
    "plan",
    "plan --json",
    "plan --diff a-1",
    "check",
    "check --json",
    f"plan --set args.x={EVIL.replace(' ', '_')}",
    f"status {EVIL.replace(' ', '_')}",
    f"{EVIL.replace(' ', '_')}",
    f"plan --provider {EVIL.replace(' ', '_')}",
    f"check {EVIL.replace(' ', '_')}",
    f"logs a-1 --since {EVIL.replace(' ', '_')}",
    f"list --state {EVIL.replace(' ', '_')}",
]


@pytest.mark.parametrize("screen", [Screen, io.StringIO], ids=["on a terminal", "into a pipe"])
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: ascii(words[:22]))
def test_no_command_passes_on_what_a_terminal_would_obey(
    place: Path, monkeypatch: pytest.MonkeyPatch, words: str, screen: type[io.StringIO]
) -> None:
    out = screen()
    err = screen()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(SystemExit):
        main(words.split(" "))
    printed = out.getvalue() + err.getvalue()
    colours = re.compile(r"\x1b\[[0-9;:]*m") if words == "logs a-1" else re.compile("\r\x1b\\[K")
    assert unsafe(colours.sub("", printed)) == []
    assert "bug in cloudtrain" not in printed, printed
    assert not re.search(
        "^  cost     nothing: it runs here",
        printed.replace("it runs here\n  request", ""),
        re.MULTILINE,
    )


def test_nothing_is_printed_but_through_the_one_place() -> None:
    lines = []
    for path in sorted((ROOT / "cloudtrain" / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and path.name != "terminal.py":
                name = ast.unparse(node.func)
                if name in (
                    "print",
                    "click.echo",
                    "click.secho",
                    "sys.stdout.write",
                    "sys.stderr.write",
                ):
                    lines.append(f"{path.name}:{node.lineno}: {name}")
                if name == "traceback.print_exc":
                    lines.append(f"{path.name}:{node.lineno}: {name}")
    assert lines == []


@pytest.mark.linux("/dev/full")
@pytest.mark.parametrize("words", [["schema"], ["--help"], ["list", "--json"]], ids=" ".join)
def test_an_output_that_takes_no_more_is_said_and_no_bug(words: list[str], tmp_path: Path) -> None:
    env = {**os.environ, "CLOUDTRAIN_DATA_DIR": str(tmp_path)}
    with open("/dev/full", "w") as full:
        argv = [sys.executable, "-m", "cloudtrain", *words]
        process = subprocess.run(
            argv, env=env, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert process.returncode == 4
    assert process.stderr.startswith("error: stdout cannot be written: No space left on device")
    assert "Traceback" not in process.stderr


@pytest.mark.linux("/dev/full")
@pytest.mark.parametrize("redirection", ["2> /dev/full", "2>&-", ">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("schema", 0), ("status nope", 2)])
def test_exit_code_does_not_depend_on_closed_or_full_streams(
    words: str, code: int, redirection: str, tmp_path: Path
) -> None:
    env = {**os.environ, "CLOUDTRAIN_DATA_DIR": str(tmp_path)}
    command = f"'{sys.executable}' -m cloudtrain {words} {redirection}"
    process = subprocess.run(["sh", "-c", command], env=env, capture_output=True, check=False)
    assert (process.returncode, b"Traceback" in process.stderr) == (code, False)


def test_command_ends_as_by_sigpipe_if_its_reader_is_gone(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "cloudtrain", "gpus"]
    env = {**os.environ, "CLOUDTRAIN_DATA_DIR": str(tmp_path)}
    process = subprocess.run(argv, env=env, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (process.returncode, process.stderr) == (141, b"")


def test_ctrl_c_that_an_import_turns_into_another_error_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(**_: object) -> None:
        raise RuntimeError("Error calling __set_name__ on 'Field'") from KeyboardInterrupt()

    monkeypatch.setattr("cloudtrain.cli.cli.main", interrupted)
    result = call("list")
    assert (result.code, result.err) == (130, "")


def test_ctrl_c_during_the_imports_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")  # imported before ours
    argv = [sys.executable, "-m", "cloudtrain", "gpus"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.run(argv, env=env, capture_output=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (130, b"", b"")


# Output on a terminal of 80 columns: no word is broken, and commands can be copied.

WIDTH = 80
LONG_JOB = """
name: digits
entrypoint: train.py
resources: {nodes: 2, gpus: 8, gpu: A100, spot: true}
dependencies: [numpy, pandas, scikit-learn, transformers, accelerate, datasets]
limits: {max_runtime: 6 h, max_wait: 12 h}
aws: {role: "arn:aws:iam::123456789012:role/digits", bucket: my-bucket, region: us-east-1}
"""


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A terminal of 80 columns, in a folder with a job."""
    for module in ("gpus", "terminal"):
        monkeypatch.setattr(f"cloudtrain.cli.{module}.columns", lambda _: WIDTH)
    (tmp_path / "job.yaml").write_text(LONG_JOB)
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("words", ["plan --provider aws", "gpus", "gpus A100:8"])
def test_lines_fit_unless_they_are_one_word_or_a_command(words: str) -> None:
    result = call(*words.split())
    long_lines = [line for line in (result.out + result.err).splitlines() if len(line) > WIDTH]
    assert result.out
    assert [
        line for line in long_lines if len(line.split()) > 2 and "cloudtrain " not in line
    ] == []


def test_wrapped_text_continues_below_the_text_of_its_label() -> None:
    line = "  cost     50.50 USD/h on demand, at most 50.00 USD"
    assert wrapped(line, 40) == "  cost     50.50 USD/h on demand, at\n           most 50.00 USD"


def test_commands_and_long_words_stay_whole() -> None:
    command = "  next     cloudtrain rerun digits-k2x9 --set limits.max_cost=50"
    assert wrapped(command, 40) == command
    path = "  folder   /a/path/that/has/no/spaces/and/more/than/forty/columns"
    assert wrapped(path, 40).split() == path.split()


# Errors on a terminal: the wrong line with a mark below it, wrapped, and alike from the command
# line to a check.

JOB = """\
name: digits
resources:
  gpus: 8
  gpu: A100-80
"""


def on_terminal(
    monkeypatch: pytest.MonkeyPatch, *words: str, columns: int = 80, colour: bool = False
) -> list[str]:
    """Return the lines that a command writes to a terminal of this width."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    (monkeypatch.delenv if colour else lambda name, **_: monkeypatch.setenv(name, "1"))(
        "NO_COLOR", raising=False
    )
    with pytest.raises(SystemExit):
        main(list(words))
    return screen.getvalue().splitlines()


def test_a_mistake_is_shown_with_its_line_and_a_mark(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "job.yaml").write_text(JOB)
    lines = on_terminal(monkeypatch, "check")
    assert lines[:4] == [
        "error: resources.gpu: unknown GPU 'A100-80' (did you mean 'A100-80GB'?)",
        "  at job.yaml:4:3",
        "  4 |   gpu: A100-80",
        "    |   ^^^",
    ]
    assert lines[4].startswith("  hint: known: A10, A100")


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_it_wraps_at_the_width(folder: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    (folder / "job.yaml").write_text(
        JOB + "args: {" + "x" * 300 + ": 1}\nnmae: " + "word " * 60 + "\n"
    )
    assert max(map(len, on_terminal(monkeypatch, "check", columns=columns))) <= columns


def test_a_line_that_may_hold_a_secret_is_not_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "job.yaml").write_text("secrets: {HF: hunter2}\n")
    lines = on_terminal(monkeypatch, "check")
    assert "  at job.yaml:1:11" in lines
    assert "hunter2" not in "\n".join(lines)


def test_two_cells_that_look_like_our_colour_together_are_escaped_each() -> None:
    lines = table([["\x1b[31m", "a\nb"], ["failed\x1b[0m", "c"]], ("run", "name")).splitlines()
    assert [line.split()[0] for line in lines] == ["run", "\\x1b[31m", "failed\\x1b[0m"]
    assert [line.split()[1] for line in lines] == ["name", "a\\nb", "c"]


def test_columns_of_a_table_are_aligned_below_ideographs() -> None:
    lines = table([["数字", "1"], ["digits", "2"]], ("run", "n")).splitlines()
    assert lines == ["run     n", "数字    1", "digits  2"]
