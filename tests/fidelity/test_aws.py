"""SageMaker as observed: the client reads it rightly, and the imitation says the same."""

from __future__ import annotations

from tests.fakes.aws.jobs import BOOTING, DOWNLOADING_IMAGE, MESSAGES, SHORTAGE
from tests.fidelity.aws import differences, observations, steps

NEVER_OBSERVED = ("Interrupted", "Restarting", "MaxRuntimeExceeded", "Stopped")


def test_the_client_reads_what_was_observed() -> None:
    wrong = {
        f"{observation.kind} {observation.number}": found
        for observation in observations()
        if (found := differences(observation))
    }
    assert wrong == {}


def test_the_imitation_speaks_in_observed_messages() -> None:
    observed = " ".join(str(observation.value) for observation in observations())
    messages = {MESSAGES[name] for name in MESSAGES if name not in NEVER_OBSERVED}
    assert [
        text for text in (*messages, BOOTING, SHORTAGE, DOWNLOADING_IMAGE) if text not in observed
    ] == []
    assert (
        sum(len(list(steps(item.value))) for item in observations() if item.kind == "transitions")
        > 100
    )
