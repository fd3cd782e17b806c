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
from cloudtrain.errors import CloudtrainError, RefusedError, SourceError, UsageError
from cloudtrain.submission import wheels
from cloudtrain.submission.context import pack_source, wheels_of, with_wheels
from cloudtrain.submission.wheels import _platform_flags
from tests.support.in_process import call
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
    """A source that asks for a wheel which needs torch; of torch the very version that is here is
    to be had.
    """
    for name, value in offline(tmp_path / "index").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    make_wheel(tmp_path / "index", "pure", "1.0", requires=["needed"])
    make_wheel(tmp_path / "index", "needed", "2.0", requires=["torch"])
    for torch in (metadata.version("torch").partition("+")[0], "2.8.0", "99.0"):
        make_wheel(tmp_path / "index", "torch", torch)
    make_wheel(tmp_path / "index", "compiled", "1.0", tag="cp312-cp312-manylinux2014_x86_64")
    return write(tmp_path / "job", {"train.py": "", "requirements.txt": "pure\ntorch>=2\n"})


def load(folder: Path, spec: Mapping[str, Any], **options: Any) -> cloudtrain.Job:
    (folder / "job.yaml").write_text(
        str({"entrypoint": "train.py", "dependencies": {"vendor": True, **options}, **spec})
    )
    return cloudtrain.load(folder / "job.yaml")


def sent(archive: Path) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
        names = [name.removeprefix(".cloudtrain/wheels/") for name in tar.getnames()]
    return [name for name in names if name.endswith(".whl") and "/" not in name]


def test_all_that_is_needed_but_torch_is_downloaded_once_and_sent(job: Path) -> None:
    loaded = load(job, {})
    notes = list[str]()
    cloudtrain.vendor(loaded, note=notes.append)
    planned = cloudtrain.plan(loaded)
    assert sent(pack_source(planned, None)) == [
        "needed-2.0-py3-none-any.whl",
        "pure-1.0-py3-none-any.whl",
    ]
    assert planned.context.source.wheels == 2
    assert cloudtrain.render(planned).job.to_json()["dependencies"] == {
        "file": "requirements.txt",
        "wheels": ".cloudtrain/wheels",
    }
    cloudtrain.vendor(loaded, note=notes.append)
    assert len(notes) == 1
    assert [
        path.name
        for path in (job.parent / "data" / "wheels").iterdir()
        if path.name.startswith(".")
    ] == []


def test_a_wheel_that_was_built_again_is_sent(job: Path) -> None:
    names = ("mine", "other")
    write(job, {"requirements.txt": "--find-links lib\nmine\n./lib/other-1.0-py3-none-any.whl\n"})
    for name in names:
        make_wheel(job / "lib", name, "1.0")
    cloudtrain.vendor(load(job, {}))
    plan = cloudtrain.plan(load(job, {}))
    assert sent(pack_source(plan, None)) == [f"{name}-1.0-py3-none-any.whl" for name in names]

    def folder() -> Path:
        found = wheels_of(plan.spec, job, job.parent / "data", plan.target)
        assert found is not None
        return found.folder

    folders = [folder()]
    for name in names:
        make_wheel(job / "lib", name, "1.0", files={f"{name}.py": b"# again\n"})
        folders.append(folder())
    assert [path.is_dir() for path in folders] == [True, False, False]
    assert folders[1] != folders[2]


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


def test_unknown_image_needs_its_python_version_for_wheels(
    job: Path,
) -> None:
    with_image = {**AWS, "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/own:1"}
    with pytest.raises(UsageError, match="the Python version of the image is unknown"):
        cloudtrain.plan(load(job, with_image), "aws")
    assert cloudtrain.plan(load(job, with_image, python="3.12"), "aws")
    write(job, {"requirements.txt": "-e .\n"})
    with pytest.raises(SourceError, match="project of the source itself"):
        cloudtrain.plan(load(job, {}))


def test_nodes_without_a_network_cannot_install_missing_packages(
    job: Path,
) -> None:

    def isolated(argument: Any) -> list[str]:
        (job / "job.yaml").write_text(str({"entrypoint": "train.py", **argument, **AWS}))
        issues = cloudtrain.plan(cloudtrain.load(job / "job.yaml"), "aws").issues
        return [issue.message for issue in issues if issue.is_error]

    assert isolated({}) == ["keeps the nodes from the index that packages come from"]
    assert isolated({"dependencies": {"vendor": True}}) == []
    assert isolated({"dependencies": "none"}) == []


def test_what_pip_says_is_told_without_passwords(job: Path) -> None:
    write(
        job,
        {
            "requirements.txt": (
                "--extra-index-url https://me:s3cret@127.0.0.1:1/simple\nno-such-thing\n"
            )
        },
    )
    with pytest.raises(CloudtrainError, match="no-such-thing") as refused:
        cloudtrain.vendor(load(job, {}))
    assert "s3cret" not in str(refused.value)


BUILDS = {
    "--no-binary :all:\npure\n": "requirements.txt:1",
    "pure\n--no-binary=:all:\n": "requirements.txt:2",
    "pure --hash=sha256:00 '--no-binary' :all:\n": "requirements.txt:1",
    "--extra-index-url https://host/simple --no-binary :all:\npure\n": "requirements.txt:1",
    "--only-binary :none:\npure\n": "requirements.txt:1",
    "pure\n-r https://host/requirements.txt\n": "requirements.txt:2",
    "-c limits.txt\npure\n": "limits.txt:1",
    "pure @ https://host/pure-1.0.tar.gz\n": "requirements.txt:1",
    "pure @ git+https://host/pure.whl\n": "requirements.txt:1",
    "sub/folder\n": "requirements.txt:1",
    "pure \\\n  --config-settings=x=y\n": "requirements.txt:1",
}


@pytest.mark.parametrize("text", BUILDS)
def test_a_line_that_may_run_a_build_script_here_is_refused_at_its_place(
    job: Path, text: str
) -> None:
    write(
        job,
        {"requirements.txt": text, "limits.txt": "--no-binary :all:\n", "sub/folder/setup.py": ""},
    )
    loaded = load(job, {})
    with pytest.raises(SourceError, match="may run a build script here") as refused:
        cloudtrain.plan(loaded)
    assert refused.value.message.startswith(f"{BUILDS[text]}: ")
    with pytest.raises(SourceError, match="may run a build script here"):
        cloudtrain.vendor(loaded)


def test_a_source_package_runs_nothing_here(job: Path) -> None:
    mark = job.parent / "was built"
    setup = (
        f"open({str(mark)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='evil',"
        " version='1.0')\n"
    )
    with tarfile.open(job.parent / "index" / "evil-1.0.tar.gz", "w:gz") as tar:
        for name, text in {"setup.py": setup, "PKG-INFO": "Name: evil\nVersion: 1.0\n"}.items():
            item = tarfile.TarInfo(f"evil-1.0/{name}")
            item.size = len(text)
            tar.addfile(item, io.BytesIO(text.encode()))
    for text in ("evil\n", "evil --no-binary :all:\n", "--no-binary :all:\nevil\n"):
        write(job, {"requirements.txt": text})
        with pytest.raises(CloudtrainError):
            cloudtrain.vendor(load(job, {}))
    assert not mark.exists()


def test_a_module_pip_of_the_working_folder_is_not_run(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(job, {"pip/__main__.py": "open('was run', 'w').close()\n", "pip/__init__.py": ""})
    monkeypatch.chdir(job)
    plan = cloudtrain.plan(load(job, {}))
    found = wheels_of(plan.spec, job, job.parent / "data", plan.target)
    assert found is not None
    wheels._pip(found, "download", "--help")
    assert not (job / "was run").exists()


def test_a_plan_gets_its_wheels_unless_its_source_has_changed(job: Path) -> None:
    planned = cloudtrain.plan(load(job, {}))
    complete = with_wheels(planned)
    assert (complete.run_id, complete.context.source.wheels) == (planned.run_id, 2)
    assert with_wheels(complete) is complete
    assert cloudtrain.plan(load(job, {})).context.source.digest == complete.context.source.digest
    write(job, {"train.py": "changed"})
    with pytest.raises(SourceError, match="changed after it was planned"):
        with_wheels(planned)


@pytest.mark.parametrize("command", ["submit", "sweep"])
def test_nothing_is_downloaded_before_the_start_is_confirmed(
    job: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RefusedError("not confirmed")

    monkeypatch.setattr("cloudtrain.cli.submit.confirm_cost", refuse)
    monkeypatch.setattr("cloudtrain.cli.sweep.confirm_cost", refuse)
    monkeypatch.setattr(wheels, "_pip", lambda *_: pytest.fail("it asks an index"))
    search = {
        "objective": {"metric": "x", "goal": "minimize"},
        "space": {"lr": [1, 2]},
        "trials": 2,
    }
    load(job, {**AWS, **({"sweep": search} if command == "sweep" else {})})
    result = call(command, str(job), "--provider", "aws")
    assert (result.code, "not confirmed" in result.err) == (3, True), result.err
