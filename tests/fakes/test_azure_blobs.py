"""The imitation of Azure's Blob service, as the genuine azure.storage.blob meets it."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
    ServiceResponseError,
)
from azure.storage.blob import ContainerClient

from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.faults import FaultKind
from tests.fakes.messages import Call


class Bearer:
    """Whatever credential gives this token."""

    def __init__(self, token: str) -> None:
        self.token = token

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken(self.token, 4_000_000_000)


def container(cloud: AzureCloud, credential: Any = None, **options: Any) -> ContainerClient:
    """A client of the workspace's container, which tries each call once."""
    named = {
        "account_name": cloud.account.storage_account,
        "account_key": cloud.account.tokens.account_key,
    }
    options = {"retry_total": 0, **options}
    return ContainerClient(
        cloud.account.blob_url, cloud.container, credential=credential or named, **options
    )


@pytest.fixture
def store(azure_account: AzureCloud) -> ContainerClient:
    return container(azure_account)


def test_blobs_are_written_read_and_deleted(
    azure_account: AzureCloud, store: ContainerClient
) -> None:
    store.upload_blob("a/b.txt", b"one", metadata={"key": "value"})
    assert azure_account.blobs("a/") == {"a/b.txt": b"one"}
    with pytest.raises(ResourceExistsError, match="BlobAlreadyExists"):
        store.upload_blob("a/b.txt", b"two")
    store.upload_blob("a/b.txt", b"two", overwrite=True)
    blob = store.get_blob_client("a/b.txt")
    facts = blob.get_blob_properties()
    assert (facts.size, facts.metadata, facts.blob_type) == (3, {}, "BlockBlob")
    blob.set_blob_metadata({"other": "value"})
    assert blob.get_blob_properties().metadata == {"other": "value"}
    assert blob.download_blob().readall() == b"two"
    assert blob.download_blob(offset=1, length=1).readall() == b"w"
    store.delete_blob("a/b.txt")
    for operation in (blob.get_blob_properties, blob.download_blob, blob.delete_blob):
        with pytest.raises(ResourceNotFoundError):
            operation()
    assert not blob.exists()


def test_large_blobs_are_uploaded_in_blocks_and_read_in_ranges(azure_account: AzureCloud) -> None:
    store = container(
        azure_account,
        max_single_put_size=1000,
        max_block_size=700,
        max_single_get_size=900,
        max_chunk_get_size=400,
    )
    content = os.urandom(5000)
    store.upload_blob("large", content, max_concurrency=2)
    assert azure_account.endpoint.calls.count(Call("blob", "PutBlock")) == 8
    assert azure_account.endpoint.calls.count(Call("blob", "PutBlockList")) == 1
    azure_account.endpoint.reset()
    assert store.download_blob("large").readall() == content
    assert azure_account.endpoint.calls == [("blob", "GetBlob")] * 12


def test_a_blob_that_changes_while_it_is_read_is_not_mixed(azure_account: AzureCloud) -> None:
    store = container(azure_account, max_single_get_size=10, max_chunk_get_size=10)
    azure_account.put("changing", b"x" * 30)
    reading = store.download_blob("changing")
    azure_account.put("changing", b"y" * 30)
    with pytest.raises(ResourceModifiedError, match="ConditionNotMet"):
        reading.readall()
    azure_account.put("empty")
    assert store.download_blob("empty").readall() == b""


def test_lists_have_prefixes_folders_and_pages(
    azure_account: AzureCloud, store: ContainerClient
) -> None:
    names = [f"listed/{folder}/{number}" for folder in "ab" for number in range(3)] + [
        "listed/z",
        "listed-not",
    ]
    for name in names:
        azure_account.put(name, name.encode())
    azure_account.account.blob_page = 2
    azure_account.endpoint.reset()
    sizes = {item.name: item.size for item in store.list_blobs(name_starts_with="listed/")}
    assert [*sizes] == sorted(names[:-1])
    assert sizes["listed/a/0"] == len("listed/a/0")
    assert azure_account.endpoint.calls == [("blob", "ListBlobs")] * 4
    folders = [item.name for item in store.walk_blobs(name_starts_with="listed/")]
    assert folders == ["listed/a/", "listed/b/", "listed/z"]


HOSTILE = [
    *(
        "../../outside",
        "/etc/passwd",
        "a//b",
        "a/../../b",
        ".",
        "..",
        "a/.",
        "\\windows",
        "-rf *",
        "a\x01b",
    ),
    *("n\u00fcl", "x" * 300, "file", "file/below"),
]
"""Names that a client may meet in a container to which others may write."""


def test_hostile_names_are_listed_and_touch_no_file_of_ours(
    azure_account: AzureCloud, store: ContainerClient
) -> None:
    for name in HOSTILE:
        azure_account.put(name, b"content")
    names = {item.name for item in store.list_blobs()}
    assert set(HOSTILE) <= names
    for name in ("/etc/passwd", "a//b", "-rf *", "n\u00fcl", "x" * 300, "file/below"):
        assert store.download_blob(name).readall() == b"content"
    folder = azure_account.account.folder
    assert not {path.name for path in folder.rglob("*")} & {"outside", "passwd"}
    assert Path("/etc/passwd").read_bytes() != b"content"
    for name in HOSTILE:
        azure_account.account.storage.create(azure_account.container).delete(name)
    assert not set(HOSTILE) & azure_account.blobs().keys()


def test_keys_tokens_and_signed_urls_allow_what_they_are_for(azure_account: AzureCloud) -> None:
    azure_account.put("seen", b"content")
    tokens = azure_account.account.tokens
    good = container(azure_account, Bearer(tokens.bearer("https://storage.azure.com")))
    assert good.download_blob("seen").readall() == b"content"
    for token in (
        "x",
        tokens.bearer(azure_account.endpoint.url),
        tokens.bearer("https://storage.azure.com", -1),
    ):
        with pytest.raises(ClientAuthenticationError):
            container(azure_account, Bearer(token)).download_blob("seen")
    wrong = {"account_name": azure_account.account.storage_account, "account_key": "d3Jvbmc="}
    with pytest.raises(ClientAuthenticationError, match="AuthenticationFailed"):
        container(azure_account, wrong).download_blob("seen")

    sas = ContainerClient.from_container_url(
        azure_account.account.sas_url(azure_account.container, permissions="rl")
    )
    assert "seen" in [item.name for item in sas.list_blobs()]
    with pytest.raises(HttpResponseError, match="AuthorizationPermissionMismatch"):
        sas.upload_blob("new", b"")
    one = azure_account.account.sas_url(azure_account.container, "seen")
    with urllib.request.urlopen(one) as answer:
        assert answer.read() == b"content"
    for url in (
        one.replace("/seen", "/unseen"),
        one.replace("sp=r", "sp=rw"),
        one.partition("?")[0],
    ):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(url)


def test_an_account_without_keys_takes_tokens_and_signatures_of_users(
    azure_account: AzureCloud,
) -> None:
    azure_account.put("seen", b"content")
    account = azure_account.account
    tokens = azure_account.account.tokens
    by_key = {"account_name": account.storage_account, "account_key": tokens.account_key}
    by_account_sas = f"?{tokens.account_sas(3600)}"
    for credential in (by_key, by_account_sas):
        assert container(azure_account, credential).download_blob("seen").readall() == b"content"

    by_user = "?" + account.sas_url(azure_account.container).partition("?")[2]
    account.takes_keys = False
    for credential in (by_key, by_account_sas):
        with pytest.raises(
            HttpResponseError, match="KeyBasedAuthenticationNotPermitted"
        ) as refused:
            container(azure_account, credential).download_blob("seen")
        headers = refused.value.response.headers  # type: ignore[union-attr]
        assert "x-ms-version" not in headers, "as recorded, unlike every other answer of storage"
    users: list[Any] = [Bearer(tokens.bearer("https://storage.azure.com")), by_user]
    for credential in users:
        assert container(azure_account, credential).download_blob("seen").readall() == b"content"


def test_a_signature_that_has_ended_opens_nothing(azure_account: AzureCloud) -> None:
    azure_account.put("seen", b"content")
    ended = f"?{azure_account.account.tokens.account_sas(-1)}"
    with pytest.raises(ClientAuthenticationError, match="AuthenticationFailed"):
        container(azure_account, ended).download_blob("seen")


PERMANENT: dict[FaultKind, tuple[type[Exception], str]] = {
    "throttle": (HttpResponseError, "ServerBusy"),
    "error": (HttpResponseError, "InternalError"),
    "expired": (ClientAuthenticationError, "AuthenticationFailed"),
    "denied": (HttpResponseError, "AuthorizationPermissionMismatch"),
    "lost": (ServiceResponseError, "Connection"),
    "refused_lost": (ServiceResponseError, "Connection"),
}


@pytest.mark.parametrize("kind", PERMANENT)
def test_every_fault_is_reported_as_storage_reports_it(
    azure_account: AzureCloud, store: ContainerClient, kind: FaultKind
) -> None:
    error, words = PERMANENT[kind]
    azure_account.endpoint.fault(kind, "blob", "PutBlob")
    with pytest.raises(error, match=words):
        store.upload_blob(f"faulty/{kind}", b"content")
    assert (f"faulty/{kind}" in azure_account.blobs("faulty/")) == (kind == "lost")
    azure_account.endpoint.fault("slow", "blob", "PutBlob", seconds=0.01)
    store.upload_blob(f"faulty/{kind}", b"content", overwrite=True)


@pytest.mark.usefixtures("quick_retries")
def test_transient_faults_are_retried(azure_account: AzureCloud) -> None:
    store = container(azure_account, retry_total=3)
    for kind in ("throttle", "error", "refused_lost"):
        azure_account.endpoint.fault(kind, "blob", "GetBlob")
    azure_account.put("again", b"content")
    assert store.download_blob("again").readall() == b"content"
