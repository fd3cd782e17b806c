"""Costs of runs equal what the imitated clouds have billed, to the cent."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.api.costs import costs, totals
from cloudtrain.api.listing import list_runs
from cloudtrain.api.lookup import import_remote_runs
from cloudtrain.api.removal import removable, remove
from cloudtrain.runs.store import RunStore
from tests.providers.sites import Site
from tests.support.clock import Clock
from tests.support.in_process import call

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("site_folder")]

LIVES = 8
THOROUGH_LIVES = 25
"""Lives for each seed and cloud."""


def start_machines(site: Site, run_id: str) -> None:
    """Begin to bill the machines of a job."""
    if site.provider == "aws":
        site.cloud.service.jobs[run_id].take_machines()

    site.start_job(run_id)


def billed_seconds(site: Site, run_id: str) -> float:
    """Return the seconds for which the cloud bills each machine of an ended job."""
    job = site.cloud.service.jobs[run_id]
    if site.provider == "aws":
        return float(job["BillableTimeInSeconds"])

    return float(job.ended - job.started)


@pytest.mark.parametrize("seed", range(4))
def test_costs_are_what_was_billed(
    site: Site, data_dir: str, clock: Clock, seed: int, thorough: bool
) -> None:
    lives = THOROUGH_LIVES if thorough else LIVES
    draw = random.Random(seed)
    store = RunStore(Path(data_dir))
    usd_per_hour: dict[str, float] = {}
    for number in range(lives):
        run_id = f"life-{seed}-{number}"
        resources = {"nodes": draw.randint(1, 3), "spot": draw.random() < 0.3}
        plan = cloudtrain.plan(cloudtrain.load({**site.job, "resources": resources}), site.provider)
        price = plan.target.cost_estimate
        assert price is not None
        assert price.usd_per_hour is not None
        usd_per_hour[run_id] = price.usd_per_hour
        theirs = draw.random() < 0.3
        site.submit(run_id, None if theirs else data_dir, resources=resources)
        start_machines(site, run_id)
        clock.advance(draw.uniform(1, 120))
        site.end_as(run_id, draw.choice(("succeeded", "failed")))

    import_remote_runs(site.provider, data_dir=data_dir)
    runs = [run["run"] for run in list_runs(data_dir=data_dir) if run["run"] in usd_per_hour]
    assert sorted(runs) == sorted(usd_per_hour)
    removed = [run for run in runs if draw.random() < 0.5]
    remove(store, removable(store, removed, ()))
    assert import_remote_runs(site.provider, data_dir=data_dir, everything=True) == []

    rows = {row["run"]: row for row in costs(data_dir=data_dir) if row["run"] in usd_per_hour}
    assert sorted(run for run, row in rows.items() if row["removed"]) == sorted(removed)
    for run_id, per_hour in usd_per_hour.items():
        seconds = billed_seconds(site, run_id)
        assert rows[run_id]["usd"] == pytest.approx(seconds * per_hour / 3600, abs=0.0001)
        assert rows[run_id]["billed_seconds"] == pytest.approx(seconds, abs=1)
        assert rows[run_id]["usd_per_hour"] == pytest.approx(per_hour)

    (total,) = totals(list(rows.values()))
    expected = sum(billed_seconds(site, run) * usd_per_hour[run] / 3600 for run in rows)
    assert total["usd"] == pytest.approx(expected, abs=0.005)
    assert (total["runs"], total["unknown"], total["running"]) == (lives, 0, 0)


def test_a_run_that_runs_has_a_cap_and_one_without_a_price_is_unknown(
    site: Site, data_dir: str, clock: Clock
) -> None:
    site.submit("goes-on", data_dir)
    start_machines(site, "goes-on")
    cloudtrain.find_run("goes-on", data_dir=data_dir).status()
    clock.advance(36)
    (row,) = costs(data_dir=data_dir)
    assert row["usd"] is None
    assert row["usd_so_far"] == pytest.approx(row["usd_per_hour"] / 100, rel=0.2)
    assert row["cap_usd"] >= row["usd_per_hour"]
    assert row["price_date"]

    (total,) = totals([row, {**row, "cap_usd": None}, {**row, "state": "failed"}])
    assert (total["running"], total["cap_usd"], total["unknown"]) == (2, None, 1)
    site.end_job("goes-on")


def test_costs_are_grouped_and_written_as_json_and_csv(
    site: Site, data_dir: str, clock: Clock
) -> None:
    site.submit("grouped", data_dir)
    start_machines(site, "grouped")
    clock.advance(60)
    site.finish_job("grouped")
    cloudtrain.find_run("grouped", data_dir=data_dir).wait()
    at = ("--data-dir", data_dir, "cost")
    (row,) = json.loads(call(*at, "--json").out)
    assert (row["run"], row["name"], row["nodes"], row["spot"]) == ("grouped", "faulty", 2, False)
    for by, group in (("provider", site.provider), ("job", "faulty"), ("owner", row["owner"])):
        (total,) = json.loads(call(*at, "--by", by, "--json").out)
        assert (total["group"], total["usd"]) == (group, row["usd"])

    (line,) = csv.DictReader(io.StringIO(call(*at, "--csv").out))
    assert float(line["usd"]) == row["usd"]
    assert json.loads(call(*at, "--since", "2099-01-01", "--json").out) == []
    shown = call(*at, "--by", "month")
    assert f"{row['usd']:.2f} USD at list price for 1 run" in shown.err
    assert "grouped" in call(*at).out
