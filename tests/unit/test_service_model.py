"""The table of SageMaker's service model is botocore's own, and judges as botocore's does.

`CLOUDTRAIN_REWRITE_TABLES=1 pytest tests/unit/test_service_model.py` makes the table anew.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cloudtrain import catalog
from cloudtrain.providers.aws import service_model
from cloudtrain.providers.aws.service_model import TABLE, request_violations, shapes_of
from tests.unit.test_shapes import GONE, input_shape, training_job

REWRITE = os.environ.get("CLOUDTRAIN_REWRITE_TABLES")
PATH = Path(catalog.__file__).with_name(TABLE)

pytest.importorskip("botocore", reason='pip install "cloudtrain[aws]"')


@cache
def botocores() -> dict[str, Any]:
    """The whole model of SageMaker, as botocore carries it."""
    spec = find_spec("botocore")
    if spec is None or spec.origin is None:
        pytest.skip("botocore is not installed")
    [path] = (Path(spec.origin).parent / "data" / "sagemaker").glob("*/service-2.json.gz")
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return document


def test_the_table_is_botocores_own() -> None:
    if REWRITE:
        lines = [
            f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}"
            for k, v in shapes_of(botocores()).items()
        ]
        head = f'{{"botocore":"{version("botocore")}",\n"shapes":{{\n'
        PATH.write_text(head + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
    assert json.loads(PATH.read_text("utf-8"))["shapes"] == shapes_of(botocores())


WRONG: dict[str, Any] = {
    "nothing": (),
    "an instance type that does not exist": (("ResourceConfig", "InstanceType"), "ml.p99.48xlarge"),
    "ten minutes of waiting": (("StoppingCondition", "MaxPendingTimeInSeconds"), 600),
    "a name with an underscore": (("TrainingJobName",), "bad_name"),
    "too long a value": (("Environment", "X"), "y" * 600),
    "too long a tag": (("Tags", 0, "Value"), "y" * 257),
    "no role": (("RoleArn",), GONE),
    "a member that there is not": (("ResourceConfig", "InstanceTyp"), "ml.g5.xlarge"),
    "text for a number": (("ResourceConfig", "InstanceCount"), "two"),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_the_table_judges_as_botocores_model_does(change: Any) -> None:
    from cloudtrain.providers.aws.shapes import violations

    request = training_job(*([change] if change else []))
    by_botocore = violations(input_shape("sagemaker", "CreateTrainingJob"), request)
    assert request_violations(request) == by_botocore
    assert bool(by_botocore) == bool(change)


def test_a_type_that_only_a_newer_botocore_knows_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = json.loads(json.dumps(botocores()))
    newer["shapes"]["TrainingInstanceType"]["enum"].append("ml.p99.48xlarge")
    folder = tmp_path / "botocore" / "data" / "sagemaker" / "2017-07-24"
    folder.mkdir(parents=True)
    (tmp_path / "botocore" / "__init__.py").write_text("raise ImportError('a plan imports no SDK')")
    (folder / "service-2.json").write_text(json.dumps(newer))
    request = training_job(
        (("ResourceConfig", "InstanceType"), "ml.p99.48xlarge"), (("RoleArn",), "x")
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "botocore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(service_model, "_installed", service_model._installed.__wrapped__)
    assert [violation.path for violation in request_violations(request)] == [("RoleArn",)]
