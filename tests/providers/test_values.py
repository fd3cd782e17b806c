"""The same questions to every provider that is found: pure until `start`, frozen, and plain JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain
from cloudtrain import providers
from cloudtrain.errors import UsageError
from cloudtrain.planning.plan import Plan


def plan_for(name: str, folder: Path, text: str = "resources: {nodes: 2, processes: 2}\n") -> Plan:
    (folder / "job").mkdir()
    (folder / "job" / "job.yaml").write_text(text)
    return cloudtrain.plan(
        cloudtrain.load(folder / "job" / "job.yaml"), name, data_dir=str(folder / "data")
    )


def test_what_a_provider_has_no_use_for_is_said_not_dropped(tmp_path: Path) -> None:
    plan = plan_for("local", tmp_path, "resources: {spot: true, disk: 1 TB}\nimage: some/image:1\n")
    assert plan.unused == ("image", "resources.spot", "resources.disk")


def test_an_unknown_provider_is_answered_with_those_at_hand() -> None:
    with pytest.raises(UsageError, match="unknown provider 'slurm'") as refused:
        providers.get_provider("slurm")
    assert "local" in (refused.value.hint or "")
    for hostile in ("../errors", "__init__", "os.path"):
        with pytest.raises(UsageError):
            providers.get_provider(hostile)
