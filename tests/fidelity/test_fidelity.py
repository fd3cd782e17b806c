"""SageMaker as observed: the client reads it rightly, and the imitation says the same."""

from __future__ import annotations

import pytest

from tests.fakes.aws.jobs import BOOTING, DOWNLOADING_IMAGE, MESSAGES
from tests.fakes.azure.cloud import AzureCloud, azure, azure_account, quick_retries
from tests.fakes.azure.recorded import Exchange
from tests.fidelity.aws import differences, observations, steps
from tests.fidelity.azure_answers import AZURE, reason, verdicts
from tests.fidelity.azure_reading import check, readable

NEVER_OBSERVED = ("Interrupted", "MaxRuntimeExceeded", "Stopped")


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
    assert [text for text in (*messages, BOOTING, DOWNLOADING_IMAGE) if text not in observed] == []
    assert (
        sum(len(list(steps(item.value))) for item in observations() if item.kind == "transitions")
        > 100
    )


__all__ = ["azure", "azure_account", "quick_retries"]


def test_the_imitation_answers_recorded_requests_as_azure_ml_did() -> None:
    differences = [
        f"{verdict.call}: {difference}"
        for verdict in verdicts()
        for difference in verdict.differences
        if not reason(AZURE, verdict.call, difference)
    ]
    assert differences == []


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize(
    "exchange",
    readable(),
    ids=lambda exchange: f"{exchange.recording.rpartition('/')[2]}-{exchange.number}",
)
def test_the_client_reads_what_azure_ml_answered(
    azure_account: AzureCloud, exchange: Exchange
) -> None:
    check(azure_account, exchange)
