"""The price in a plan, the choice of its machine, and the target that plan.json restores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.catalog.price_tables import ListedPrice, table_path, table_text
from cloudtrain.cli.plan_view import overview
from cloudtrain.errors import SpecError
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.status import usd_per_hour
from cloudtrain.providers.azure.config import AzureConfig
from tests.support.samples import earlier_runs

# The price in a plan, the reason for its machine, cheaper choices, and stored plans that never
# change.

Planned = Callable[..., Plan]
Listed = Callable[..., Path]


@pytest.fixture
def listed(tmp_path: Path) -> Listed:
    """Stores what a price list has said of a region."""

    def store(
        provider: str,
        region: str,
        prices: Mapping[str, float],
        as_of: str = "2026-11-20",
        folder: Path | None = None,
    ) -> Path:
        path = table_path(folder or tmp_path / "data", provider, region)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = (
            ListedPrice(
                instance_type=name, usd_per_hour=usd, region=region, as_of=as_of, source="a list"
            )
            for name, usd in prices.items()
        )
        path.write_text(table_text(rows))
        return path

    return store


@pytest.fixture
def planned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Plans a job of those resources, without any account."""

    def plan(
        provider: str, resources: Mapping[str, object], region: str = "", **limits: object
    ) -> Plan:
        monkeypatch.setenv(
            f"CLOUDTRAIN_{'AWS_REGION' if provider == 'aws' else 'AZURE_LOCATION'}", region
        )
        job = cloudtrain.load(
            {"resources": dict(resources), "limits": {"max_runtime": "1 h", **limits}}
        )
        return cloudtrain.plan(job, provider, preview=True)

    return plan


def usd(plan: Plan) -> float | None:
    assert plan.target.cost_estimate is not None
    return plan.target.cost_estimate.usd_per_hour


def cheaper(plan: Plan) -> dict[str, float]:
    assert plan.target.choice is not None
    return {offer.instance_type: offer.usd_per_hour for offer in plan.target.choice.cheaper}


@pytest.mark.parametrize(("launcher", "is_found"), [("torchrun", True), ("none", False)])
@pytest.mark.parametrize(
    ("instance", "issue"),
    [
        ("ml.g5.12xlarge", "3 of 4 GPUs per node stay idle"),
        ("ml.trn1.2xlarge", "has AWS's own accelerators"),
    ],
)
def test_a_command_uses_all_of_a_machine_in_its_own_way(
    folder: Path, instance: str, issue: str, launcher: str, is_found: bool
) -> None:
    folder.joinpath("train.py").touch()
    resources = {"instance": {"aws": instance}, "processes": 1}
    entrypoint = "train.py" if launcher == "torchrun" else "python train.py"
    values = {"launcher": launcher, "entrypoint": entrypoint, "resources": resources}
    job = cloudtrain.load({**values, "limits": {"max_runtime": "1 h"}})
    plan = cloudtrain.plan(job, "aws", preview=True)
    assert any(issue in item.message for item in plan.issues) is is_found


def test_the_price_is_that_of_the_jobs_own_region(planned: Planned, listed: Listed) -> None:
    listed("aws", "eu-west-1", {"ml.g5.xlarge": 1.561})
    listed("aws", "us-west-2", {"ml.g5.xlarge": 9.0})
    plan = planned("aws", {"gpus": 1, "gpu": "A10G", "nodes": 2}, "eu-west-1")
    assert usd(plan) == pytest.approx(2 * 1.561)
    assert "3.12 USD/h on demand (price of 2026-11-20" in overview(plan)
    listed("azure", "westeurope", {"Standard_NC24ads_A100_v4": 4.1})
    instance = {"instance": {"azure": "standard_nc24ads_a100_V4"}}
    assert usd(planned("azure", instance, "westeurope")) == 4.1


def test_price_of_another_region_is_marked_and_does_not_hold_a_budget(
    planned: Planned, listed: Listed
) -> None:
    plan = planned("aws", {"gpus": 1, "gpu": "A10G"}, "eu-west-1")
    assert usd(plan) is None
    assert (
        "unknown: no price for ml.g5.xlarge in eu-west-1; 1.41 USD/h on demand in us-east-1 (price of 2026-"
        in overview(plan)
    )
    plan = planned("aws", {"gpus": 1, "gpu": "A10G"}, "eu-west-1", max_cost="10 USD")
    (note,) = plan.target.config_as(AwsConfig).unpaid
    assert note.startswith("limits.max_cost: cannot be kept: the price of this machine is unknown")
    assert "cloudtrain gpus --provider aws --region eu-west-1 --refresh" in note
    listed("azure", "swedencentral", {"Standard_ND96isr_H200_v5": 80.0})
    plan = planned("azure", {"gpus": 8, "gpu": "H200"}, "eastus")
    assert "in eastus; 80.00 USD/h on demand in swedencentral" in overview(plan)
    assert " 0.00 USD" not in overview(plan)


def test_list_of_azure_costs_at_most_what_its_dearest_machine_costs(
    planned: Planned, listed: Listed
) -> None:
    first = "Standard_NC4as_T4_v3"
    second = "Standard_NC24ads_A100_v4"
    listed("azure", "westeurope", {first: 1.0, second: 4.0})
    machines = {"nodes": 2, "instance": {"azure": [first, second]}}
    plan = planned("azure", machines, "westeurope")
    text = overview(plan, plan.issues)
    assert f"2 x {first} (1 x T4-16GB) or {second} (1 x A100-80GB)" in text
    assert f"if quota or capacity refuses {first}, submit plans and tries {second}" in text
    assert "2.00 USD/h on demand" in text
    assert "at most 8.00 USD of machine time on the dearest of these machines" in text
    plan = planned("azure", machines, "westeurope", max_cost="4 USD")
    assert plan.request.document["resources"]["instance_type"] == first
    assert plan.request.document["limits"]["timeout"] == 3600
    assert plan.target.cost_estimate
    assert plan.target.cost_estimate.worst_usd == 4.0

    unpriced = {"instance": {"azure": [first, "Standard_NV36ads_A10_v5"]}}
    plan = planned("azure", unpriced, "westeurope", max_cost="4 USD")
    (note,) = plan.target.config_as(AzureConfig).unpaid
    unknown = "the price of Standard_NV36ads_A10_v5 is unknown"
    assert note.startswith(f"limits.max_cost: cannot be kept: {unknown}")
    assert "no price for Standard_NV36ads_A10_v5 in" in overview(plan)

    cluster = cloudtrain.load({"resources": machines, "azure": {"compute": "gpus"}})
    plan = cloudtrain.plan(cluster, "azure", preview=True)
    next_type = f"if the cluster gpus has other machines than {first}, submit plans and tries"
    assert f"{next_type} {second}" in [issue.message for issue in plan.issues]


def test_without_a_location_nobody_promises_a_price(planned: Planned) -> None:
    machine = {"instance": {"azure": "Standard_DS3_v2"}}
    plan = planned("azure", machine, max_cost="0.50 USD")
    (note,) = plan.target.config_as(AzureConfig).unpaid
    assert note.startswith("limits.max_cost: cannot be kept: the price of this machine is unknown")
    assert "prices are known once azure.location is set" in note
    text = overview(plan)
    assert (
        "unknown: no price for Standard_DS3_v2 in an unknown location; 0.29 USD/h on demand in eastus"
        in text
    )
    assert "at most" not in text
    assert "cheaper" not in text


def test_ones_own_table_wins_then_what_was_read_unless_ours_is_newer(
    planned: Planned, listed: Listed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t4 = {"gpus": 1, "gpu": "T4"}
    shipped = usd(planned("aws", t4, "us-east-1"))
    listed("aws", "us-east-1", {"ml.g4dn.xlarge": 0.5}, as_of="2020-01-01")
    assert usd(planned("aws", t4, "us-east-1")) == shipped
    listed("aws", "us-east-1", {"ml.g4dn.xlarge": 0.6})
    assert usd(planned("aws", t4, "us-east-1")) == 0.6
    (tmp_path / "own.csv").write_text("instance_type,usd_per_hour\nml.g4dn.xlarge,0.25\n")
    monkeypatch.setenv("CLOUDTRAIN_PRICES", str(tmp_path / "own.csv"))
    plan = planned("aws", t4, "us-east-1")
    assert usd(plan) == 0.25
    assert "(price of your own table)" in overview(plan)


@pytest.mark.parametrize("text", ["", "instance_type\n", "{}", "0", "\0"])
def test_a_damaged_table_is_named_with_its_line(
    planned: Planned, listed: Listed, text: str
) -> None:
    path = listed("aws", "eu-west-1", {"ml.g5.xlarge": 1.5})
    path.write_text(path.read_text().replace("1.5", "0") if text == "0" else text)
    with pytest.raises(SpecError) as caught:
        planned("aws", {"gpus": 1}, "eu-west-1")
    assert f"{path}: line " in str(caught.value)


def test_cheaper_machines_of_both_clouds_are_named_if_they_satisfy_the_spec(
    planned: Planned, listed: Listed
) -> None:
    assert cheaper(planned("aws", {"gpus": 1})) == {"Standard_NC4as_T4_v3": 0.526}
    models = {"gpus": 8, "gpu": ["H100", "A100-80GB"]}
    plan = planned("azure", models, "eastus")
    assert [*cheaper(plan)] == ["Standard_ND96amsr_A100_v4", "ml.p5.48xlarge"], (
        "the first model that is cheaper"
    )
    shown = next(line for line in overview(plan).splitlines() if "cheaper: " in line)
    assert "ml.p5.48xlarge 63.30 USD/h (8 x H100-80GB, aws, us-east-1, price of 2026-" in shown
    cpus = next(
        line
        for line in overview(planned("azure", {}, "eastus")).splitlines()
        if "cheaper: " in line
    )
    assert cpus.count("us-east-1") == 1
    named = planned("azure", {"instance": {"azure": "Standard_ND96isr_H100_v5"}}, "eastus")
    assert [*cheaper(named)] == ["ml.p5.48xlarge"], "of the same GPU"
    t4 = {"gpus": 4, "gpu": "T4"}
    assert [*cheaper(planned("aws", t4))] == ["Standard_NC64as_T4_v3"]
    listed("aws", "us-east-1", {"ml.g4dn.12xlarge": 4.4})
    assert cheaper(planned("aws", t4)) == {}, "the same price"


def test_what_a_run_costs_stays_what_it_was_when_prices_change(
    planned: Planned, listed: Listed, tmp_path: Path
) -> None:
    stored_runs = Path(earlier_runs("aws", tmp_path / "kept", tmp_path / "job"))
    run = cloudtrain.find_run("old-aws-done", data_dir=str(stored_runs))
    request = run.folder.document("request.json")
    described = {"ResourceConfig": request["ResourceConfig"]}
    before = usd_per_hour(described, run.folder)
    summary = cloudtrain.list_runs(data_dir=str(stored_runs))
    assert before
    name = request["ResourceConfig"]["InstanceType"]
    listed(
        "aws",
        run.folder.document("plan.json")["target"]["where"],
        {name: 999.0},
        folder=stored_runs,
    )
    found_run = cloudtrain.find_run("old-aws-done", data_dir=str(stored_runs))
    assert usd_per_hour(described, found_run.folder) == before
    assert cloudtrain.list_runs(data_dir=str(stored_runs)) == summary


# A provider's decisions for a plan are typed values, and plan.json restores them, old files
# included.

OLD_AWS: Mapping[str, Any] = {
    "region": "us-east-1",
    "role": "arn:aws:iam::123456789012:role/train",
    "bucket": "my-bucket",
    "repository": None,
    "subnets": ["subnet-1"],
    "security_groups": ["sg-1"],
    "kms_key": None,
    "borrowed": ["aws.region"],
    "placeholders": [],
    "instances": ["ml.p4d.24xlarge"],
    "prices": {"ml.p4d.24xlarge": 25.25},
    "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1",
    "recipe": None,
    "poll": 10.0,
    "unpaid": [],
}
"""`target.facts` of an early plan.json, before these were types."""


def test_a_config_that_an_earlier_version_wrote_is_read() -> None:
    config = AwsConfig.from_json(OLD_AWS)
    assert (config.region, config.bucket, config.poll) == ("us-east-1", "my-bucket", 10.0)
    assert (config.subnets, config.prices) == (("subnet-1",), {"ml.p4d.24xlarge": 25.25})
