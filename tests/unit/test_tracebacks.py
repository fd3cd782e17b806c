"""Tracebacks of anybody's log: whole, cut off, boxed, of notebooks; the program's own frame; what a
kind says.
"""

from __future__ import annotations

import pytest

from cloudtrain.diagnosis.failure import Diagnosis, diagnose_lines
from cloudtrain.diagnosis.log_text import Evidence, evidence_of

LIBRARY = "/opt/conda/lib/python3.11/site-packages"
HEADER = "Traceback (most recent call last):"


def diagnosed(*lines: str) -> Diagnosis:
    return diagnose_lines(
        evidence
        for number, line in enumerate(lines, 1)
        for evidence in evidence_of(line, "log", number)
    )


def name_of(diagnosis: Diagnosis) -> str:
    return diagnosis.rule.name if diagnosis.rule else "none"


SHAPES = {
    "whole": (HEADER, '  File "train.py", line 7, in main', "    batch[key]", "KeyError: 'labels'"),
    "of a rank": (
        "[rank3]: " + HEADER,
        '[rank3]:   File "train.py", line 7, in main',
        "[rank3]: KeyError: 'labels'",
    ),
    "its beginning is cut off": (
        '  File "train.py", line 7, in main',
        "    batch[key]",
        "KeyError: 'labels'",
    ),
    "its indentation is lost": (
        HEADER,
        'File "train.py", line 7, in main',
        "batch[key]",
        "KeyError: 'labels'",
    ),
    "deeper in a log of pip": (
        "    " + HEADER,
        '      File "train.py", line 7, in main',
        "    KeyError: 'labels'",
    ),
    "of a notebook": (
        "File train.py:7, in main(batch)",
        "      6 key = 1",
        "----> 7 batch[key]",
        "KeyError: 'labels'",
    ),
    "of a notebook, folded": (
        "KeyError                Traceback (most recent call last)",
        "[<ipython-input-3>](https://localhost:8080/#) in <cell line: 4>()",
        "2 frames",
        "[train.py](https://localhost:8080/#) in main(batch)",
        "-> 7     raise KeyError('labels')",
        "KeyError: 'labels'",
    ),
    "boxed": (
        "╭──── Traceback (most recent call last) ────╮",
        "│ train.py:7 in main │",
        "╰─────╯",
        "KeyError: 'labels'",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_traceback_is_read_in_whatever_shape_it_is_printed(shape: str) -> None:
    diagnosis = diagnosed(*SHAPES[shape])
    place = "" if "folded" in shape else " (train.py:7)"
    assert diagnosis.cause.endswith(f"raised KeyError: 'labels'{place}")


def test_frame_of_the_program_and_of_the_called_library_are_named() -> None:
    frames = (
        '  File "train.py", line 7, in main',
        f'  File "{LIBRARY}/lib/loader.py", line 12, in load',
    )
    diagnosis = diagnosed(HEADER, *frames, "KeyError: 'labels'")
    assert (
        diagnosis.cause == "the program raised KeyError: 'labels' (train.py:7, in lib/loader.py:12)"
    )
    diagnosis = diagnosed(HEADER, frames[1], "KeyError: 'labels'")
    assert "(lib/loader.py:12)" in diagnosis.cause


def test_an_exception_of_a_loaders_worker_is_that_of_the_worker() -> None:
    handed_on = "KeyError: Caught KeyError in DataLoader worker process 0."
    worker = (
        "Original " + HEADER,
        '  File "data.py", line 3, in __getitem__',
        "    row[name]",
        "KeyError: 'text'",
    )
    assert (
        "KeyError: 'text' (data.py:3)"
        in diagnosed(HEADER, '  File "train.py", line 9', handed_on, *worker).cause
    )


def test_an_exception_that_python_ignores_is_not_the_cause() -> None:
    ignored = (
        "Exception ignored in: <function D.__del__ at 0x7>",
        HEADER,
        '  File "x.py", line 3, in __del__',
    )
    assert diagnosed(*ignored, "AssertionError: can only test a child process").evidence == ()


def test_an_exception_that_a_rule_knows_explains_the_unknown_one_that_led_to_it() -> None:
    first = (HEADER, '  File "config.py", line 3, in get', "KeyError: 'lr'")
    separator = "During handling of the above exception, another exception occurred:"
    traceback = (
        HEADER,
        '  File "train.py", line 9, in main',
        "omegaconf.errors.ConfigKeyError: no lr",
    )
    assert name_of(diagnosed(*first, separator, *traceback)) == "settings-refused"
    assert name_of(diagnosed(*first, "ChildFailedError: train.py")) == "none"


def test_a_message_of_several_lines_is_read_line_by_line_too() -> None:
    reason = (
        f'AlgorithmError: ExecuteUserScriptError:\n{HEADER}\n  File "train.py", line 7\nKeyError:'
        " 'labels'"
    )
    diagnosis = diagnose_lines([Evidence(reason, "platform")])
    assert diagnosis.cause == "the program raised KeyError: 'labels' (train.py:7)"
    assert [consequence.rule.name for consequence in diagnosis.consequences] == ["launcher-summary"]


PLACES = {
    "compile-failed": (
        f"{LIBRARY}/torch/_inductor/graph.py",
        "lower",
        "out = lowerings[target]()",
        "AssertionError",
    ),
    "extension-not-built": (
        f"{LIBRARY}/torch/utils/cpp_extension.py",
        "_build",
        "raise",
        "RuntimeError: exit 1",
    ),
    "checkpoint-does-not-fit": (
        "train.py",
        "resume",
        "opt.load_state_dict(checkpoint['opt'])",
        "KeyError: 'opt'",
    ),
    "checkpoint-damaged": (
        f"{LIBRARY}/torch/serialization.py",
        "_load",
        "magic = load(f)",
        "EOFError",
    ),
    "tracker-refused": (f"{LIBRARY}/mlflow/store.py", "log", "raise", "TypeError: no float"),
    "settings-refused": (
        f"{LIBRARY}/transformers/training_args.py",
        "__post_init__",
        "raise",
        "ValueError: no output",
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_an_exception_is_known_by_where_it_was_raised_if_not_by_its_message(name: str) -> None:
    file, function, code, exception = PLACES[name]
    lines = (
        '  File "train.py", line 1, in main',
        "    run()",
        f'  File "{file}", line 7, in {function}',
        f"    {code}",
    )
    assert name_of(diagnosed(HEADER, *lines, exception)) == name


def test_what_is_tried_again_is_not_the_cause_and_the_last_try_is() -> None:
    tried = "Retrying in 1s: (MaxRetryError) Max retries exceeded with url: /config.json"
    assert name_of(diagnosed(tried)) == "none"
    assert (
        name_of(
            diagnosed(
                tried, "requests.exceptions.ConnectionError: Max retries exceeded with url: /"
            )
        )
        != "none"
    )
