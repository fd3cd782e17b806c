"""`cloudtrain check --provider aws --online`: its questions about this job, and its reports of
mistakes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cloudtrain.cli import main
from cloudtrain.providers.aws.client import aws
from tests.fakes.aws.cloud import Cloud
from tests.providers.aws.accounts import HealthyAccount, log_in
from tests.providers.aws.broken_accounts import P4D, no_credentials

pytestmark = pytest.mark.once


@pytest.fixture
def healthy(cloud: Cloud) -> HealthyAccount:
    cloud.account.quotas.clear()
    return HealthyAccount(cloud)


def checked(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["check", "--provider", "aws", *arguments])
    return int(ended.value.code or 0)


def test_check_online_asks_for_the_very_job_and_tells_the_line(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_in(healthy, monkeypatch)
    Path("job.yaml").write_text(json.dumps(healthy.spec(), indent=1))
    assert checked() == 0
    assert healthy.cloud.endpoint.calls == [], "without --online no call is sent"
    assert checked("--online") == 0
    assert "; 10 checks there, nothing wrong\n" in capsys.readouterr().out
    healthy.cloud.account.quotas.update(P4D)
    assert checked("--online") == 2
    errors = capsys.readouterr().err
    assert re.search(
        r"^job.yaml:\d+:\d+: resources: quota: the quota '.*' \(L-.*\) is 1, the job has 2$",
        errors,
        re.MULTILINE,
    )
    assert checked("--online", "--json", "--set", "resources.nodes=1") == 0
    assert {"verdict": "ok", "name": "quota"}.items() <= json.loads(capsys.readouterr().out)[
        "checks"
    ][8].items()


def test_check_online_of_a_sweep_counts_machines_of_parallel_trials(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_in(healthy, monkeypatch)
    sweep = {
        "objective": {"metric": "val_loss", "goal": "minimize"},
        "space": {"lr": [1, 2, 3, 4]},
        "method": "grid",
        "parallel": 4,
    }
    Path("job.yaml").write_text(json.dumps({**healthy.spec(), "sweep": sweep}, indent=1))
    healthy.cloud.account.quotas.update(dict.fromkeys(P4D, 7))
    assert checked("--online") == 2
    assert re.search(
        r"^job.yaml:\d+:\d+: sweep.parallel: quota: the quota '.*' \(L-.*\) is 7, 4 trials at once"
        r" have 8$",
        capsys.readouterr().err,
        re.MULTILINE,
    )
    assert checked("--online", "--set", "sweep.parallel=3") == 0


def test_check_online_without_credentials_is_trouble_with_the_cloud(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.yaml").write_text(json.dumps(healthy.spec()))
    no_credentials(healthy, monkeypatch)
    aws.cache_clear()
    assert checked("--online") == 4
    assert "no AWS credentials" in capsys.readouterr().err
