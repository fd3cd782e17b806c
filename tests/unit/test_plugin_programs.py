"""Programs that a plugin calls: which of their failures leave open whether the work is done."""

from __future__ import annotations

import pytest

from cloudtrain.errors import CloudError, Outcome
from cloudtrain.providers.plugin import program_output


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("echo refused >&2; exit 1", Outcome.REFUSED),
        ("echo 'Socket timed out' >&2; exit 1", Outcome.UNKNOWN),
        ("exit 255", Outcome.UNKNOWN),
        ("kill -KILL $$", Outcome.UNKNOWN),
    ],
)
def test_a_failure_is_judged_by_its_text_its_code_and_its_signal(
    script: str, outcome: Outcome
) -> None:
    with pytest.raises(CloudError) as failed:
        program_output(["sh", "-c", script], unknown=(255,), unknown_text="timed out")

    assert failed.value.outcome is outcome
    assert failed.value.transient == (outcome is Outcome.UNKNOWN)


def test_a_silent_program_is_killed_and_leaves_it_open() -> None:
    with pytest.raises(CloudError, match="no answer within") as failed:
        program_output(["sleep", "3600"], seconds=0.1)

    assert failed.value.outcome is Outcome.UNKNOWN


def test_a_program_gets_its_environment_and_its_folder() -> None:
    argv = ["/bin/sh", "-c", 'echo "$KEY $PWD"']
    assert program_output(argv, env={"KEY": "5f1c"}, folder="/") == b"5f1c /\n"
