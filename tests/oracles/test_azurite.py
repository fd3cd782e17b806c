"""Azurite, Microsoft's own imitation of its storage, behind the client: inputs, results, logs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.storage.blob import (
    BlobSasPermissions,
    ContainerClient,
    ContainerSasPermissions,
    generate_blob_sas,
    generate_container_sas,
)

import cloudtrain
from cloudtrain.errors import CloudError
from cloudtrain.providers.azure.results import download_folder
from cloudtrain.providers.azure.storage import BlobContainer, RenewedSas, read_log
from cloudtrain.providers.shared.uploads import upload_inputs
from tests.oracles.tools import AZURITE, needs_azurite

pytestmark = needs_azurite

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's account, which its documentation names."""
ODD_NAMES = (
    *("plain.txt", "with space.txt", "ümläut €.txt", "100%25.txt", "a+b&c=d.txt", "hash#1.txt"),
    *("question?.txt", "quote'\".txt", "deep/er/and deeper/x", "trailing.", "~tilde", "[x]{y}"),
)
ACCOUNT_ID = "12345678-1234-1234-1234-123456789abc"
STORE = "azureml://datastores/store/paths"


@pytest.fixture(scope="module")
def account() -> Iterator[str]:
    """Address of Azurite's account, in memory, at a free port."""
    command = [str(AZURITE), "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        address = next(match for line in lines if (match := re.search(r"http://\S+:\d+", line)))
        yield f"{address[0]}/{ACCOUNT}"
        process.terminate()


@pytest.fixture
def name(account: str, request: pytest.FixtureRequest) -> str:
    """Name of a new container."""
    container = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:60].strip("-")
    ContainerClient(account, container, credential=KEY).create_container()
    return container


def sas_of(container: str, seconds: float = 3600) -> str:
    return generate_container_sas(
        ACCOUNT,
        container,
        account_key=KEY,
        permission=ContainerSasPermissions.from_string("rcwdl"),
        expiry=datetime.now(UTC) + timedelta(seconds=seconds),
    )


def workspace(account: str, name: str, secret: Any = None) -> Any:
    """A workspace with one datastore."""
    container = BlobContainer(account, name, secret or sas_of(name), lambda: None)
    return SimpleNamespace(container=lambda _: container)


def uploaded(cloud: Any, folder: Path) -> str:
    """Upload an input to the datastore; return the URI of its copy."""
    azure = {
        "subscription": ACCOUNT_ID,
        "resource_group": "group",
        "workspace": "workspace",
        "location": "eastus",
        "datastore": "store",
    }
    job = cloudtrain.load({"inputs": {"train": str(folder)}, "azure": azure})
    plan = cloudtrain.plan(job, "azure")
    upload_inputs(plan, cloud.container("store"), None)
    return str(plan.request.document["inputs"]["train"]["path"])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_inputs_with_odd_names_come_back_unchanged(account: str, name: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for odd in ODD_NAMES:
        (data / odd).parent.mkdir(parents=True, exist_ok=True)
        (data / odd).write_text(odd)
    cloud = workspace(account, name)
    first = uploaded(cloud, data)
    assert first == uploaded(cloud, data)
    assert download_folder(cloud, first, tmp_path / "back", None)
    assert contents(tmp_path / "back") == contents(data)


def test_many_files_are_listed_page_by_page(account: str, name: str, tmp_path: Path) -> None:
    """A page has 5,000 names at most."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(5001):
        (data / f"{number:04}").write_text(str(number))
    cloud = workspace(account, name)
    uri = uploaded(cloud, data)
    folder = uri.removeprefix(f"{STORE}/")
    names = [blob.name for blob in cloud.container("store").blobs(folder)]
    assert names == [f"{folder}{number:04}" for number in range(5001)]
    assert download_folder(cloud, uri, tmp_path / "back", None)
    assert contents(tmp_path / "back") == contents(data)


def test_a_large_file_is_sent_in_blocks(account: str, name: str, tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(os.urandom(1 << 20) * 300)
    cloud = workspace(account, name)
    uri = uploaded(cloud, large)
    name_of_blob = uri.removeprefix(f"{STORE}/")
    cloud.container("store").download(
        name_of_blob, 300 << 20, tmp_path / "back.bin", lambda _: None
    )
    assert (tmp_path / "back.bin").read_bytes() == large.read_bytes()


def test_a_secret_that_ends_is_renewed(account: str, name: str) -> None:
    renewals = []

    def renew() -> str:
        renewals.append(name)
        return sas_of(name)

    container = workspace(account, name, RenewedSas(sas_of(name, -60), renew)).container("store")
    container.put("a", b"1")
    container.put("b", b"2")
    assert [blob.name for blob in container.blobs("")] == ["a", "b"]
    assert renewals == [name]


def test_a_secret_of_another_account_is_refused(account: str, name: str) -> None:
    forged = sas_of(name).replace("sig=", "sig=AAAA")
    with pytest.raises(CloudError) as failure:
        workspace(account, name, RenewedSas(forged, lambda: forged)).container("store").put(
            "a", b""
        )
    assert "the credentials have expired, or this machine's clock is wrong" in str(failure.value)


def test_a_log_grows_and_is_replaced(account: str, name: str) -> None:
    blob = ContainerClient(account, name, credential=KEY).get_blob_client("std_log.txt")
    signature = generate_blob_sas(
        ACCOUNT,
        name,
        "std_log.txt",
        account_key=KEY,
        permission=BlobSasPermissions(read=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    address = f"{blob.url}?{signature}"
    assert read_log(address, 0, "") is None

    blob.create_append_blob()
    blob.append_block(b"first\n")
    first = read_log(address, 0, "")
    assert first is not None
    assert (first.data, first.start, first.more) == (b"first\n", 0, False)

    blob.append_block(b"second\n")
    second = read_log(address, 6, first.created)
    assert second is not None
    assert (second.data, second.start) == (b"second\n", 6)

    blob.delete_blob()
    blob.create_append_blob()
    blob.append_block(b"new\n")
    replaced = read_log(address, 13, first.created)
    assert replaced is not None
    assert (replaced.data, replaced.start) == (b"new\n", 0)
