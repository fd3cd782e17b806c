"""The changelog, the constraints, and the words that client, job and containers share."""

from __future__ import annotations

import datetime
import re
from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import cloudtrain
import cloudtrain_job
from cloudtrain.planning import sagemaker
from cloudtrain.providers.aws import request
from cloudtrain.providers.local import processes as children
from cloudtrain.providers.local import processes as liveness
from cloudtrain.providers.rehearsal import namespace as enter
from cloudtrain.runs import logs
from cloudtrain.source.tree import PAYLOAD_FOLDER
from cloudtrain_launcher import keyboard
from cloudtrain_launcher.platforms import sagemaker as sagemaker_context
from cloudtrain_wire import events
from tests.repo.tools import ROOT


def test_the_changelog_tells_of_this_version_first_and_sorts_every_change() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    first, *released = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    assert first == "Unreleased"
    assert released[0].partition(" - ")[0] == cloudtrain.__version__
    for title in released:
        version, _, date = title.partition(" - ")
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), title
        assert datetime.date.fromisoformat(date), title
    kinds = set(re.findall(r"^### (.+)$", changelog, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


OF_CUDA = re.compile(r"(nvidia|cuda|triton)\b")
"""Packages that torch itself pins, in its builds for CUDA."""


def required_packages(name: str, extras: frozenset[str]) -> set[str]:
    """Names of all packages that an installed package needs with these extras, itself included."""
    visited = set()
    waiting = [(name, extras)]
    while waiting:
        package = waiting.pop()
        if package in visited:
            continue
        visited.add(package)
        for requirement in map(Requirement, requires(package[0]) or ()):
            environments = [{"extra": extra} for extra in ("", *package[1])]
            marker = requirement.marker
            if marker is None or any(marker.evaluate(environment) for environment in environments):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in visited}


def test_every_package_that_is_installed_is_pinned_by_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    packages = required_packages("cloudtrain", frozenset({"train", "dev"})) - {"cloudtrain"}
    unpinned = {name for name in packages - pinned if not OF_CUDA.match(name)}
    assert unpinned == set()


def test_client_and_job_agree_on_the_words_they_share() -> None:
    launch = (ROOT / "entrypoints" / "cloudtrain_launcher" / "launch.py").read_text()
    assert logs.EVENT_MARK.decode() == cloudtrain_job.MARKER
    assert set(cloudtrain_job.SIGNED_EVENTS) == {
        kind for kind, event in events.EVENT_TYPES.items() if event.WRITER == events.RANK
    }
    assert f'"{children.SUPERVISOR_PID}"' in launch
    assert f"\nSTOPPED = {children.STOPPED}\n" in launch
    assert keyboard.RUN_DIR == liveness.RUN_DIR_VARIABLE
    assert liveness.RUN_DIR_VARIABLE.startswith("CLOUDTRAIN_")


def test_request_and_container_agree_on_where_things_are() -> None:
    assert (request.SOURCE, request.JOB, request.RESUME) == sagemaker_context.RESERVED
    assert PAYLOAD_FOLDER in request.BOOTSTRAP
    assert len(request.BOOTSTRAP) <= 256
    assert sagemaker_context.base_dir({}) == sagemaker.ROOT == enter.TREE
    assert sagemaker_context.failure_file({}) == f"{sagemaker.ROOT}/{sagemaker.FAILURE_FILE}"
    assert sagemaker_context.BASE_DIR in request.BOOTSTRAP
