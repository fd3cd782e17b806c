"""Whatever goes wrong while results are fetched: everything comes or nothing, and nothing gets out
of its folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.errors import CloudError, StorageError
from cloudtrain.submission.fetched import fetched_files
from cloudtrain.submission.run import Run
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.faults import FaultKind
from tests.providers.azure.jobs import reconnect, submitted
from tests.providers.faults import (
    PERMANENT,
    TRANSIENT,
    assert_each_struck,
    fault_each,
    name_of,
    run_id_of,
)

pytestmark = pytest.mark.once

FETCHING = [
    ("history", "GetDiscovery", 1),
    ("history", "GetRunDetails", 1),
    ("arm", "GetDatastore", 1),
    ("arm", "ListSecrets", 1),
    ("blob", "ListBlobs", 1),
    ("blob", "GetBlob", 1),
    ("blob", "GetBlob", 2),
    ("blob", "ListBlobs", 2),
    ("blob", "GetBlob", 3),
    ("blob", "ListBlobs", 3),
    ("blob", "GetBlob", 4),
    ("arm", "GetDatastore", 2),
    ("arm", "ListSecrets", 2),
    ("blob", "ListBlobs", 4),
    ("blob", "GetBlob", 5),
]


def with_results(cloud: AzureCloud, run_id: str) -> Run:
    """Return a run with a model, an output and a checkpoint; its workspace is still unknown."""
    run = submitted(run_id)
    for name, content in {
        "model/weights": b"w" * 1000,
        "model/deep/tokens.json": b"{}",
        "model/empty": b"",
        "output/log.csv": b"a,b\n",
        "output/.cloudtrain-stop": b"",
        "checkpoints/step-1/rank-0.pt": b"c" * 1000,
    }.items():
        cloud.put(f"cloudtrain/runs/{run.id}/{name}", content)
    artifacts = cloud.account.storage.create("azureml")
    for name in ("outputs/plot.png", "logs/azureml/executor.log", "user_logs/std_log.txt"):
        artifacts.write(f"ExperimentRun/dcid.{run.id}/{name}", b"p" * 10)
    reconnect()
    cloud.endpoint.reset()
    return run


def whole(folder: Path) -> bool:
    """Return whether exactly the expected files are in the folder."""
    paths = map(Path, fetched_files(folder))
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    return sizes == {
        "model/weights": 1000,
        "model/deep/tokens.json": 2,
        "model/empty": 0,
        "output/log.csv": 4,
        "output/outputs/plot.png": 10,
        "checkpoints/step-1/rank-0.pt": 1000,
    }


@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_fetch_copies_everything_despite_a_transient_fault_in_each_of_its_calls(
    cloud: AzureCloud, tmp_path: Path, kind: FaultKind
) -> None:
    run = with_results(cloud, run_id_of("fetch", kind))
    fault_each(cloud.endpoint, kind, FETCHING)
    run.fetch(tmp_path / "result", checkpoints=True)
    assert_each_struck(cloud.endpoint, kind, FETCHING)
    assert whole(tmp_path / "result")
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.parametrize("kind", PERMANENT)
def test_refused_fetch_leaves_nothing_and_the_next_copies_everything(
    cloud: AzureCloud, tmp_path: Path, kind: FaultKind
) -> None:
    run = with_results(cloud, run_id_of("refused", kind))
    for call in FETCHING:
        reconnect()
        cloud.endpoint.reset()
        cloud.endpoint.fault(kind, *call)
        result = tmp_path / name_of(call)
        if call[0] != "history":  # a fetch needs not know how the job stands
            with pytest.raises(CloudError) as failed:
                run.fetch(result, checkpoints=True)
            assert failed.value.hint
            assert not result.exists()
        run.fetch(result, checkpoints=True)
        assert cloud.endpoint.struck == [(kind, call[:2])]
        assert whole(result)
        assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


HOSTILE = ["../outside", "deep/../../outside", "a//b", "a\0b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_and_leaves_nothing(
    cloud: AzureCloud, tmp_path: Path, name: str
) -> None:
    run = submitted(f"hostile-{HOSTILE.index(name)}")
    cloud.put(f"cloudtrain/runs/{run.id}/model/good", b"x")
    cloud.put(f"cloudtrain/runs/{run.id}/model/{name}", b"x")
    with pytest.raises(StorageError, match="is not a path inside a folder"):
        run.fetch(tmp_path / "deep" / "result")
    assert not (tmp_path / "outside").exists()
    assert list((tmp_path / "deep").iterdir()) == []


def test_folders_that_some_accounts_list_are_no_files(cloud: AzureCloud, tmp_path: Path) -> None:
    run = submitted("folders-1")
    store = cloud.account.storage.create(cloud.container)
    for name in ("model", "model/deep"):
        store.write(f"cloudtrain/runs/{run.id}/{name}/", b"", {"hdi_isfolder": "true"})
        store.write(f"cloudtrain/runs/{run.id}/{name}", b"", {"hdi_isfolder": "true"})
    cloud.put(f"cloudtrain/runs/{run.id}/model/deep/weights", b"w")
    run.fetch(tmp_path / "result")
    assert (tmp_path / "result" / "model" / "deep" / "weights").read_bytes() == b"w"


def test_links_come_back_if_they_stay_inside_and_are_named_if_not(
    cloud: AzureCloud, tmp_path: Path
) -> None:
    run = submitted("links-1")
    place = f"cloudtrain/runs/{run.id}/model"
    for name, content in {
        "step-2/weights": b"w",
        "latest.cloudtrain-link": b"step-2",
        "step-2/up.cloudtrain-link": b"../latest/weights",
        "absolute.cloudtrain-link": b"/etc/passwd",
        "out.cloudtrain-link": b"../../x",
        "zero.cloudtrain-link": b"a\0b",
        "large.cloudtrain-link": b"a file of the user's own" * 1000,
    }.items():
        cloud.put(f"{place}/{name}", content)
    notes: list[str] = []
    run.fetch(tmp_path / "result", note=notes.append)
    model = tmp_path / "result" / "model"
    assert sorted(path.name for path in model.iterdir()) == [
        "large.cloudtrain-link",
        "latest",
        "step-2",
    ]
    assert (model / "latest").readlink() == Path("step-2")
    assert (model / "step-2" / "up").read_bytes() == b"w"
    assert [note.partition(":")[0] for note in sorted(notes)] == [
        f"model/{name} was left out" for name in ("absolute", "out", "zero")
    ]
