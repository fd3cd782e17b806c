"""Why a run failed, for a reader who has nothing but the page: cause, remedy, traceback and last
lines.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice

from cloudtrain.diagnosis.run_failure import diagnose_run
from cloudtrain.errors import StorageError
from cloudtrain.pages.svg import element, words
from cloudtrain.runs.failure import explain
from cloudtrain.runs.logs import LogReader
from cloudtrain.runs.state import RunState
from cloudtrain.submission.run import Run

MAX_LINES = 20
"""Lines of the log that are shown."""
MAX_LINE_CHARACTERS = 300
MAX_TEXT_CHARACTERS = 1000


def failure_parts(run: Run, state: RunState, name: str = "") -> list[str]:
    """Return the markup that explains a failed run; nothing for another run.

    `name`: the run's name in front, on a page of two runs.
    """
    if state.state != "failed":
        return []
    diagnosis = diagnose_run(run.folder, state)
    explanation = explain(state)
    paragraphs = [
        f"{name}: {explanation}" if name and explanation else explanation,
        "" if diagnosis.cause in explanation or explanation in diagnosis.cause else diagnosis.cause,
        *(f"{line.place}  {line.text}" for line in diagnosis.evidence),
        f"What to do: {diagnosis.remedy}" if diagnosis.remedy else "",
    ]
    return [
        element(
            "div",
            *(element("p", words(text[:MAX_TEXT_CHARACTERS])) for text in paragraphs if text),
            *_preformatted("Traceback", _traceback(state)),
            *_preformatted(f"The last {MAX_LINES} lines", last_lines(run, state)),
            class_="failure",
        )
    ]


def _traceback(state: RunState) -> str:
    return (state.error.traceback or state.error.stack) if state.error else ""


def last_lines(run: Run, state: RunState) -> str:
    """Return the last lines that the failed rank printed, or all ranks if it printed nothing."""
    rank = state.error.rank if state.error and state.error.rank >= 0 else None
    return (_last_lines_of(run, rank) if rank is not None else "") or _last_lines_of(run, None)


def _last_lines_of(run: Run, rank: int | None) -> str:
    with suppress(StorageError):
        printed = (line for line in LogReader(run.folder).read_backward() if not line.kind)
        chosen = (line for line in printed if rank is None or line.rank == rank)
        latest = [
            f"[{line.source or f'node {line.node}'}] {line.text}"
            for line in islice(chosen, MAX_LINES)
        ]
        return "\n".join(line[:MAX_LINE_CHARACTERS] for line in reversed(latest))
    return ""


def _preformatted(title: str, text: str) -> list[str]:
    return [element("p", words(title), class_="note"), element("pre", words(text))] if text else []
