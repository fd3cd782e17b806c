"""Azure ML as recorded: the imitation answers as the service did, and the client reads it."""

from __future__ import annotations

import pytest

from tests.fakes.azure.cloud import AzureCloud, azure, azure_account, quick_retries
from tests.fakes.azure.recorded import Exchange
from tests.fidelity.azure_answers import verdicts
from tests.fidelity.azure_reading import check, readable
from tests.fidelity.differences import AZURE, reason

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
