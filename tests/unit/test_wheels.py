"""`dependencies: {vendor: true}`: wheels downloaded by a submit, and sent with the source."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.errors import CloudtrainError, SourceError, UsageError
from cloudtrain.submission.context import pack_source
from cloudtrain.submission.wheels import _platform_flags
from tests.support.samples import write
from tests.support.wheels import make_wheel, offline

AWS: dict[str, Any] = {
    "aws": {
        "region": "us-east-1",
        "role": "arn:aws:iam::123456789012:role/t",
        "bucket": "my-bucket",
        "network_isolation": True,
    },
    "limits": {"max_runtime": "1 h"},
    "resources": {"instance": {"aws": "ml.g5.xlarge"}},
    "image": "dlc:pytorch-2.8",
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source that asks for a wheel which needs torch; of torch the very version that is here is to be had."""
    for name, value in offline(tmp_path / "index").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    make_wheel(tmp_path / "index", "pure", "1.0", requires=["needed"])
    make_wheel(tmp_path / "index", "needed", "2.0", requires=["torch"])
    for torch in (metadata.version("torch").partition("+")[0], "2.8.0", "99.0"):
        make_wheel(tmp_path / "index", "torch", torch)
    make_wheel(tmp_path / "index", "compiled", "1.0", tag="cp312-cp312-manylinux2014_x86_64")
    return write(tmp_path / "job", {"train.py": "", "requirements.txt": "pure\ntorch>=2\n"})


def load(folder: Path, spec: Mapping[str, Any], **said: Any) -> cloudtrain.Job:
    (folder / "job.yaml").write_text(str({"entrypoint": "train.py", "dependencies": {"vendor": True, **said}, **spec}))
    return cloudtrain.load(folder / "job.yaml")


def sent(archive: Path) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
        names = [name.removeprefix(".cloudtrain/wheels/") for name in tar.getnames()]
    return [name for name in names if name.endswith(".whl") and "/" not in name]


def test_all_that_is_needed_but_torch_is_downloaded_once_and_sent(job: Path) -> None:
    loaded, said = load(job, {}), list[str]()
    cloudtrain.vendor(loaded, note=said.append)
    planned = cloudtrain.plan(loaded)
    assert sent(pack_source(planned, None)) == ["needed-2.0-py3-none-any.whl", "pure-1.0-py3-none-any.whl"]
    assert planned.context.source.wheels == 2
    assert cloudtrain.render(planned).job.to_json()["dependencies"] == {
        "file": "requirements.txt",
        "wheels": ".cloudtrain/wheels",
    }
    cloudtrain.vendor(loaded, note=said.append)
    assert len(said) == 1
    assert [path.name for path in (job.parent / "data" / "wheels").iterdir() if path.name.startswith(".")] == []


def test_for_a_cloud_they_are_those_of_the_images_python(job: Path) -> None:
    write(job, {"requirements.txt": "compiled\n"})
    loaded = load(job, AWS)
    cloudtrain.vendor(loaded, "aws")
    assert sent(pack_source(cloudtrain.plan(loaded, "aws"), None)) == [
        "compiled-1.0-cp312-cp312-manylinux2014_x86_64.whl"
    ]
    older = load(job, AWS, python="3.9")
    with pytest.raises(UsageError, match="No matching distribution found for compiled"):
        cloudtrain.vendor(older, "aws")
    flags = _platform_flags("3.12")
    assert ("--abi", "cp312") in pairwise(flags)


def test_a_plan_without_its_wheels_is_not_started(job: Path) -> None:
    planned = cloudtrain.plan(load(job, {}))
    assert planned.context.source.wheels == 0
    with pytest.raises(UsageError, match="not downloaded yet") as refused:
        pack_source(planned, None)
    assert "cloudtrain.vendor(job)" in (refused.value.hint or "")


def test_an_unknown_image_needs_its_python_named_and_the_source_itself_has_no_wheel(job: Path) -> None:
    own = {**AWS, "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/own:1"}
    with pytest.raises(UsageError, match="That of the image is not known"):
        cloudtrain.plan(load(job, own), "aws")
    assert cloudtrain.plan(load(job, own, python="3.12"), "aws")
    write(job, {"requirements.txt": "-e .\n"})
    with pytest.raises(SourceError, match="project of the source itself"):
        cloudtrain.plan(load(job, {}))


def test_nodes_without_a_network_are_refused_packages_that_do_not_come_with_the_job(job: Path) -> None:
    from cloudtrain.submission.preflight import offline_issues

    def isolated(said: Any) -> list[str]:
        (job / "job.yaml").write_text(str({"entrypoint": "train.py", **said, **AWS}))
        issues = offline_issues(cloudtrain.plan(cloudtrain.load(job / "job.yaml"), "aws"))
        return [issue.message for issue in issues if issue.is_error]

    assert isolated({}) == ["keeps the nodes from the index that packages come from"]
    assert isolated({"dependencies": {"vendor": True}}) == []
    assert isolated({"dependencies": "none"}) == []


def test_what_pip_says_is_told_without_passwords(job: Path) -> None:
    write(job, {"requirements.txt": "--extra-index-url https://me:s3cret@127.0.0.1:1/simple\nno-such-thing\n"})
    with pytest.raises(CloudtrainError, match="no-such-thing") as refused:
        cloudtrain.vendor(load(job, {}))
    assert "s3cret" not in str(refused.value)
