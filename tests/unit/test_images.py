"""The addresses of AWS's training containers, and pushes of images without an engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloudtrain import catalog as images
from cloudtrain.catalog import dlc_image, dlc_regions, dlc_versions
from cloudtrain.errors import CloudError, CloudtrainError, UsageError
from cloudtrain.planning.registry import TOKEN_USER, RegistryLogin
from cloudtrain.providers.docker.engine import Engine, stored_login
from cloudtrain.providers.docker.images import login_for, require_image
from tests.support.waiting import HANG_SECONDS

# The addresses of AWS's training containers: each is what the sagemaker SDK itself gives, and none
# newer is missing.
# `CLOUDTRAIN_REWRITE_TABLES=1 pytest tests/unit/test_images.py` makes `dlc.csv` and
# `dlc_accounts.csv` anew.

# Read at import: the tests' own home has no such variable.
REWRITE = os.environ.get("CLOUDTRAIN_REWRITE_TABLES")
TABLES = Path(images.__file__).parent
KEPT = 8
"""Number of the newest versions in the table."""
URI = re.compile(
    r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.([a-z0-9.-]+)/pytorch-training:([\d.]+)-(gpu|cpu)-(py\d+)"
)
TYPES = {"gpu": "ml.g5.xlarge", "cpu": "ml.m5.xlarge"}
Addresses = Mapping[str, Mapping[str, Mapping[str, str | None]]]
"""The SDK's: version, region, processor, address (None: it knows none)."""

# In a separate process: the import takes seconds, warns, and would leave its settings in this
# one.
SCRIPT = f"""
import botocore.loaders, json, socket, sys
def refuse(*args, **kwargs): raise OSError("no network for this")
socket.socket.connect = socket.getaddrinfo = refuse
loader = botocore.loaders.create_loader()
botocore.loaders.create_loader = lambda *args: loader  # the SDK would read all endpoints anew for each address
from sagemaker.core import image_uris
known = image_uris.config_for_framework("pytorch")["training"]["versions"]
newest = sorted(known, key=lambda version: [int(part) for part in version.split(".")])[:-{KEPT + 1}:-1]
regions = sorted({{region for version in newest for region in known[version]["registries"]}})
def address(version, region, type):
    try:
        return image_uris.retrieve("pytorch", region, version=version, image_scope="training", instance_type=type)
    except ValueError:
        return None
def both(version, region):
    return {{processor: address(version, region, type) for processor, type in {TYPES}.items()}}
json.dump({{version: {{region: both(version, region) for region in regions}} for version in newest}}, sys.stdout)
"""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Addresses:
    """Return the SDK's addresses of its newest versions in each region, newest version first."""
    if find_spec("sagemaker") is None or find_spec("sagemaker.core") is None:
        pytest.skip("sagemaker-core is not installed")
    home = str(tmp_path_factory.mktemp("sdk"))
    env = {"HOME": home, "PATH": os.environ["PATH"], "AWS_EC2_METADATA_DISABLED": "true"}
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert process.returncode == 0, process.stderr
    listed: Addresses = json.loads(process.stdout)
    if REWRITE:
        rewrite(listed)
    return listed


def rewrite(addresses: Addresses) -> None:
    """Rewrite both tables from the SDK's data."""
    places: dict[str, tuple[str, str]] = {}
    cuda = {row["version"]: row["cuda"] for row in images.table("dlc")}
    versions = ["version,python,cuda,without"]
    for version, regions in addresses.items():
        python = ""
        for region, by_processor in regions.items():
            if match := URI.fullmatch(by_processor["gpu"] or ""):
                account, _, domain, _, _, python = match.groups()
                assert places.setdefault(region, (account, domain)) == (
                    account,
                    domain,
                ), "an account per version"
        without = [
            region for region, by_processor in regions.items() if by_processor["gpu"] is None
        ]
        versions.append(f"{version},{python},{cuda.get(version, '')},{' '.join(without)}")
    accounts = [
        "region,account,domain",
        *(",".join((region, *places[region])) for region in sorted(places)),
    ]
    (TABLES / "dlc.csv").write_text("\n".join(versions) + "\n")
    (TABLES / "dlc_accounts.csv").write_text("\n".join(accounts) + "\n")
    images.table.cache_clear()


def cases(addresses: Addresses) -> Iterator[tuple[str, str, str, str | None]]:
    """Version, region, processor, the SDK's address."""
    for version, regions in addresses.items():
        for region, by_processor in regions.items():
            for processor, address in by_processor.items():
                yield version, region, processor, address


def test_every_address_is_the_sdks(addresses: Addresses) -> None:
    images = {case: dlc_image(case[0], case[1], case[2] == "gpu") for case in cases(addresses)}
    assert len(images) > 500
    assert {case: address for case, address in images.items() if address != case[3]} == {}


def test_no_newer_version_and_no_region_is_missing(addresses: Addresses) -> None:
    command = "CLOUDTRAIN_REWRITE_TABLES=1 pytest tests/unit/test_images.py"
    assert list(dlc_versions()) == list(dict.fromkeys(v.rpartition(".")[0] for v in addresses)), (
        command
    )
    assert set(dlc_regions()) == {region for regions in addresses.values() for region in regions}, (
        command
    )


@pytest.mark.parametrize(
    ("version", "region", "gpu", "address"),
    [
        (
            "2.8",
            "us-east-1",
            True,
            "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-gpu-py312",
        ),
        (
            "2.5",
            "eu-south-1",
            False,
            "692866216735.dkr.ecr.eu-south-1.amazonaws.com/pytorch-training:2.5.1-cpu-py311",
        ),
        (
            "2.9",
            "cn-north-1",
            True,
            "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/pytorch-training:2.9.0-gpu-py312",
        ),
    ],
)
def test_an_address_is_written_out(version: str, region: str, gpu: bool, address: str) -> None:
    assert dlc_image(version, region, gpu) == address


@pytest.mark.parametrize(
    ("version", "region"),
    [
        ("2.99", "us-east-1"),
        ("2", "us-east-1"),
        ("", "us-east-1"),
        ("2.8", "mars-1"),
        ("2.8", ""),
        ("2.7", "me-west-1"),
    ],
)
def test_what_is_not_known_has_no_address(version: str, region: str) -> None:
    assert dlc_image(version, region, gpu=True) is None
    assert dlc_image(version, region, gpu=False) is None


# Pushing without an engine: what engines of both kinds say of a digest, and the logins that docker
# has kept.

DIGEST = f"sha256:{'ab' * 32}"
OTHER = f"sha256:{'cd' * 32}"
SENDING: list[dict[str, Any]] = [
    {"status": "The push refers to repository [127.0.0.1:5000/own]"},
    {"status": "Pushing", "id": "a1", "progressDetail": {"current": 50, "total": 100}},
    {"status": "Pushing", "id": "b2", "progressDetail": {"total": 200}},
    {"status": "Pushing", "id": "a1", "progressDetail": {"current": 120, "total": 100}},
    {"status": "Layer already exists", "id": "c3", "progressDetail": {}},
]
SAID: dict[str, Any] = {"status": f"1: digest: {DIGEST} size: 528"}
ENDS: dict[str, list[dict[str, Any]]] = {
    "docker's own store": [
        SAID,
        {"progressDetail": {}, "aux": {"Tag": "1", "Digest": DIGEST, "Size": 528}},
    ],
    "containerd's store": [{"aux": {"manifestPushedInsteadOfIndex": True}}, SAID],
    "several": [{"status": f"1: digest: {OTHER} size: 528"}, SAID],
}


def engine(messages: list[dict[str, Any]]) -> Engine:
    api = SimpleNamespace(tag=lambda *_: True, push=lambda *_, **__: iter(messages))
    return Engine(cast("Any", SimpleNamespace(api=api)))


@pytest.mark.parametrize("kind", ENDS)
def test_the_digest_is_known_from_what_either_kind_of_engine_says(kind: str) -> None:
    reported: list[tuple[int, int]] = []
    pushing = engine([*SENDING, *ENDS[kind]])
    assert (
        pushing.push("own", "127.0.0.1:5000/own:1", None, lambda *amounts: reported.append(amounts))
        == DIGEST
    )
    assert reported == [(50, 100), (50, 300), (100, 300)]


def test_a_push_that_says_no_digest_has_failed() -> None:
    with pytest.raises(CloudError, match="ended without a digest"):
        engine(SENDING).push("own", "127.0.0.1:5000/own:1", None, None)


def test_an_error_after_the_digest_is_one() -> None:
    with pytest.raises(CloudError, match="denied"):
        engine([*SENDING, SAID, {"error": "denied"}]).push(
            "own", "127.0.0.1:5000/own:1", None, None
        )


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file where `docker login` stores credentials."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


def helper(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """A program that keeps logins for docker, and has this one for everybody."""
    program = folder / "docker-credential-tests"
    program.write_text(f"#!/bin/sh\n[ \"$1\" = get ] || exit 1\nprintf %s '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    "where", [{"credsStore": "tests"}, {"credHelpers": {"host:5000": "tests"}}]
)
def test_a_login_in_a_store_of_the_system_is_found(
    config: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any]
) -> None:
    helper(
        config.parent, monkeypatch, '{"ServerURL":"host:5000","Username":"me","Secret":"secret"}'
    )
    config.write_text(json.dumps({"auths": {"host:5000": {}}, **where}))
    assert stored_login("host:5000") == RegistryLogin("me", "secret")


def test_what_az_acr_login_leaves_is_a_login_to_azures_registries(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(config.parent, monkeypatch, '{"ServerURL":"x","Username":"<token>","Secret":"refresh"}')
    for text in (
        {"credsStore": "tests"},
        {"auths": {"mine.azurecr.io": {"auth": "", "identitytoken": "refresh"}}},
    ):
        config.write_text(json.dumps(text))
        assert stored_login("mine.azurecr.io") == RegistryLogin(TOKEN_USER, "refresh")
        assert stored_login("host:5000") is None


@pytest.mark.parametrize("auth", ["bm9jb2xvbg==", "no base64", "/w=="])
def test_a_login_that_is_none_is_no_traceback(config: Path, auth: str) -> None:
    config.write_text(json.dumps({"auths": {"host:5000": {"auth": auth}}}))
    assert stored_login("host:5000") is None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            CloudError("no Docker engine answers at unix:///var/run/docker.sock"),
            "no Docker engine answers",
        ),
        (
            UsageError("containers and images need Docker's SDK, which is not installed"),
            "need Docker's SDK",
        ),
    ],
)
def test_without_an_engine_an_image_is_not_looked_up_and_that_is_reported(
    monkeypatch: pytest.MonkeyPatch, config: Path, error: CloudtrainError, message: str
) -> None:
    def engine(_: float) -> None:
        raise error

    monkeypatch.setattr("cloudtrain.providers.docker.images.docker_engine", engine)
    messages: list[str] = []
    assert require_image("registry.example.com/train:1", "amd64", messages.append) == ""
    [note] = messages
    assert message in note


@pytest.mark.filterwarnings("ignore:docker-credential-no-such-helper not installed")
def test_without_stored_credentials_there_is_no_login(config: Path) -> None:
    assert login_for("127.0.0.1:1") is None
    config.write_text("no JSON")
    assert login_for("127.0.0.1:1") is None
    config.write_text(json.dumps({"auths": {}, "credHelpers": {"127.0.0.1:1": "no-such-helper"}}))
    assert login_for("127.0.0.1:1") is None
