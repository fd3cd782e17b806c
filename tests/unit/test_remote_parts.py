"""Parts that all clouds share: names that stay inside their folder, addresses of files, ownership
of jobs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.catalog.machines import select_instances
from cloudtrain.errors import StorageError
from cloudtrain.providers.shared.paths import file_name, safe_join
from cloudtrain.providers.shared.tags import own_tags, same_submission, tags
from tests.golden.cases import CASES, plan_of

FOLDER = Path("/data/run/model")
TAGS = {"run": "digits-k2x9", "planned": "1795213216.000", "spec": "ab", "source": "cd"}


@pytest.mark.parametrize(
    "name", ["model.pt", "a/b/c.pt", "..a", "a..", "...", "a\\..\\b", "~", "-rf", "ü 😀", "a\nb"]
)
def test_a_name_is_a_path_inside_its_folder(name: str) -> None:
    assert safe_join(FOLDER, name) == FOLDER / name


@given(
    st.lists(
        st.sampled_from(["..", ".", "/", "a", "", "\0"]) | st.text(max_size=3), max_size=6
    ).map("/".join)
)
def test_no_name_at_all_leads_out_of_its_folder(name: str) -> None:
    try:
        path = safe_join(FOLDER, name)
    except StorageError:
        return
    assert os.path.normpath(path) == str(path)
    assert path.is_relative_to(FOLDER)
    assert path != FOLDER


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("s3://b/t.csv", "t.csv"),
        ("s3://b/x/t.tar.gz", "t.tar.gz"),
        ("azureml://datastores/d/paths/labels.json", "labels.json"),
        ("./a.b/t.pt2", "t.pt2"),
        ("t.csv", "t.csv"),
        ("s3://b/x/", ""),
        ("s3://b/x", ""),
        ("s3://b/v1.0", ""),
        ("s3://b/2026.11.21", ""),
        ("s3://b/.hidden", ""),
        ("s3://b/t.csv/", ""),
        ("azureml:words:3", ""),
    ],
)
def test_an_address_means_a_file_when_its_end_looks_like_one(place: str, name: str) -> None:
    assert file_name(place) == name


@pytest.mark.parametrize("key", ["run", "planned", "spec"])
def test_two_jobs_of_one_name_are_two_submissions(key: str) -> None:
    assert same_submission(TAGS, dict(TAGS))
    assert same_submission(TAGS, {**TAGS, "source": "other", "version": "9"})
    assert not same_submission(TAGS, {**TAGS, key: "other"})
    assert not same_submission(TAGS, {name: value for name, value in TAGS.items() if name != key})


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("local", "docker")])
def test_our_tags_come_back_out_of_all_tags(case: str) -> None:
    plan = plan_of(*CASES[case])
    everything = tags(plan, plan.target.image_address)
    mine = own_tags(everything)
    assert (mine["run"], mine["name"], mine["planned"]) == (
        "digits-k2x9",
        "digits",
        "1795213216.000",
    )
    assert mine["git-dirty"] == "true"
    assert ("image-digest" in mine) == ("@sha256:" in CASES[case][1])
    assert everything.keys() - {f"cloudtrain-{key}" for key in mine} == plan.spec.tags.keys()
    assert own_tags({"team": "vision", "cloudtrain-x": 3}) == {"x": "3"}


def test_models_that_a_cloud_does_not_have_are_passed_over() -> None:
    def chosen(provider: str, gpus: int, *gpu: str) -> tuple[str, ...]:
        types, _, problems = select_instances(
            provider, gpus=gpus, gpu=gpu, named=(), default="none"
        )
        assert problems == []
        return types

    wish = ("L4", "A100-80GB", "H100 NVL", "H100")
    assert chosen("azure", 8, *wish) == ("Standard_ND96amsr_A100_v4", "Standard_ND96isr_H100_v5")
    assert chosen("azure", 2, *wish) == ("Standard_NC48ads_A100_v4", "Standard_NC80adis_H100_v5")
    assert chosen("aws", 8, *wish) == ("ml.g6.48xlarge", "ml.p4de.24xlarge", "ml.p5.48xlarge")
