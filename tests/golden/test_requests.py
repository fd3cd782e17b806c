"""Requests held against files: what would be sent changes only when somebody means it to.

`CLOUDTRAIN_REWRITE_GOLDEN=1 pytest tests/golden` writes the files anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import cloudtrain
from cloudtrain.planning.launch import Request
from cloudtrain.providers import get_provider
from tests.golden.cases import CASES, REWRITE, SWEEPS, plan_of
from tests.support.samples import AWS_ACCOUNT, AZURE_ACCOUNT

FOLDER = Path(__file__).parent
WRITTEN_BY = "0.1.0"
"""The version in the tags of the files, the same after a release."""


@pytest.mark.parametrize("case", CASES)
def test_a_request_is_what_it_was(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    provider, text = CASES[case]
    hold(case, get_provider(provider).render(plan_of(provider, text)))


@pytest.mark.parametrize("case", SWEEPS)
def test_the_request_of_a_sweep_is_what_it_was(case: str) -> None:
    provider, text = SWEEPS[case]
    hold(case, get_provider(provider).native_sweeps().render(plan_of(provider, text)))


def hold(case: str, request: Request) -> None:
    """Compare a request with its file."""
    content = {"request": request.document, "job": request.job.to_json()}
    path = FOLDER / f"{case}.json"
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    text = text.replace(json.dumps(cloudtrain.__version__), json.dumps(WRITTEN_BY))
    if REWRITE:
        path.write_text(text)
    assert text == path.read_text()


SWEEP = """
sweep:
  objective: {metric: val_loss, goal: minimize}
  space: {lr: loguniform(1e-4, 1e-1), env.SEED: [1, 2]}
  trials: 20
"""


@pytest.mark.parametrize("case", ["local", "docker", "aws", "azure"])
def test_a_job_with_a_sweep_is_sent_as_one_without(case: str) -> None:
    provider, text = CASES[case]
    plain = plan_of(provider, text)
    swept = plan_of(provider, text + SWEEP)
    assert swept.spec.sweep is not None
    one, second = (get_provider(provider).render(plan) for plan in (plain, swept))
    assert one.document == second.document
    assert one.job.to_json() == second.job.to_json()


PUBLIC_JOBS: dict[str, list[dict[str, Any]]] = yaml.safe_load(
    (FOLDER.parent / "data" / "public_jobs.yaml").read_text()
)


@pytest.mark.parametrize(
    ("provider", "example"),
    [
        pytest.param(provider, example, id=example["from"])
        for provider, examples in PUBLIC_JOBS.items()
        for example in examples
    ],
)
def test_public_job_is_planned_with_its_own_members(
    provider: str, example: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = example["job"]
    entrypoint = job["entrypoint"]
    words = entrypoint.split() if isinstance(entrypoint, str) else []
    source = tmp_path / job.get("source", ".")
    source.mkdir(exist_ok=True, parents=True)
    scripts = [source / word for word in words if word.endswith(".py")]
    for file in [*scripts, *(tmp_path / name for name in example.get("files", ()))]:
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text("FROM scratch\n" if file.name == "Dockerfile" else "pass\n")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    monkeypatch.chdir(tmp_path)
    for name, value in {**AWS_ACCOUNT, **AZURE_ACCOUNT}.items():
        monkeypatch.setenv(name, value)
    plan = cloudtrain.plan(cloudtrain.load("job.yaml"), provider)

    python = "py" + example.get("python", "-").replace(".", "")
    refused = [issue.field for issue in plan.issues if issue.is_error]
    assert refused == (["image"] if python in str(job["image"]) else [])
    assert not list(missing(example["request"], dict(plan.request.document)))


def missing(wanted: Any, value: Any, at: str = "") -> Iterator[str]:
    """Yield the path of each member that another document does not have with the same value."""
    if isinstance(wanted, dict) and isinstance(value, dict):
        for name, item in wanted.items():
            yield from missing(item, value.get(name), f"{at}.{name}")
    elif isinstance(wanted, list) and isinstance(value, list):
        for item in wanted:
            if not any(not list(missing(item, other)) for other in value):
                yield f"{at}: {item}"
    elif wanted != value:
        yield f"{at}: {wanted!r}, not {value!r}"


@pytest.mark.parametrize("provider", PUBLIC_JOBS)
def test_four_of_five_public_jobs_need_no_member_of_the_request(provider: str) -> None:
    jobs = [example["job"] for example in PUBLIC_JOBS[provider]]
    plain = [job for job in jobs if not job.get(provider, {}).get("request")]
    assert len(plain) >= 0.8 * len(jobs)
