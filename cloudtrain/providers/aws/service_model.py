"""SageMaker's own model of the requests that start jobs, from a table of ours: a plan has no time
to import an SDK.

`create_training_job.json` in the catalog is the part of botocore's service model that they consist
of: those of a training job and of a tuning job. tests/unit/test_service_model.py compares it with
botocore, and makes it anew. The model of a botocore that is installed is read as a file where the
table finds fault: a newer SDK may know an instance type that the table does not.

Required members and types hold for every version. An enum, a pattern or a maximum goes out of date,
and botocore holds no request against them (it took its check of the maximum out:
boto/botocore#779); what breaks them is a warning that names the versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from cloudtrain.issues import Issue

TABLE = "create_training_job.json"
OPERATION_INPUT = "CreateTrainingJobRequest"
TUNING_INPUT = "CreateHyperParameterTuningJobRequest"


class TableShape:
    """One shape of a service model as JSON, with the attributes that botocore's own shapes have."""

    def __init__(self, name: str, traits: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
        self.name = name
        self.type_name = traits["type"]
        self.metadata = traits
        self._shapes = shapes

    @cached_property
    def members(self) -> dict[str, TableShape]:
        """Of a structure."""
        return {
            name: self._of(reference)
            for name, reference in self.metadata.get("members", {}).items()
        }

    @property
    def member(self) -> TableShape:
        """Of a list."""
        return self._of(self.metadata["member"])

    @property
    def key(self) -> TableShape:
        """Of a map."""
        return self._of(self.metadata["key"])

    @property
    def value(self) -> TableShape:
        """Of a map."""
        return self._of(self.metadata["value"])

    def _of(self, reference: Mapping[str, Any]) -> TableShape:
        name = reference["shape"]
        return TableShape(name, {**self._shapes[name], **reference}, self._shapes)


def request_violations(body: Mapping[str, Any], operation: str = OPERATION_INPUT) -> list[Issue]:
    """All that is wrong with a request by the table; what a botocore at hand lets pass is no
    mistake.

    `operation`: the shape of the request: OPERATION_INPUT or TUNING_INPUT.
    """
    from cloudtrain.providers.aws.shapes import violations

    found = violations(_table(operation), body)
    installed = _installed(operation) if found else None
    if installed is not None:
        wrong = {violation.path for violation in violations(installed, body)}
        found = [violation for violation in found if violation.path in wrong]
    return found


def models() -> str:
    """The models that were asked: `botocore 1.40.2 and 1.43.4`; one version where both are of the
    same.
    """
    from importlib.metadata import version

    versions = {
        str(_file()["botocore"]),
        *([version("botocore")] if _installed(OPERATION_INPUT) else []),
    }
    return f"botocore {' and '.join(sorted(versions))}"


def shapes_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """The shapes that these requests consist of, out of a whole service model, without their prose."""
    found: dict[str, Any] = {}
    names = [OPERATION_INPUT, TUNING_INPUT]
    while names:
        name = names.pop()
        if name in found:
            continue
        found[name] = _without_prose(model["shapes"][name])
        parts = [
            *found[name].get("members", {}).values(),
            *(found[name].get(k) for k in ("member", "key", "value")),
        ]
        names += [part["shape"] for part in parts if part]
    return dict(sorted(found.items()))


def _without_prose(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            k: _without_prose(v)
            for k, v in value.items()
            if not (k == "documentation" and isinstance(v, str))
        }
    return [_without_prose(item) for item in value] if isinstance(value, list) else value


@cache
def _table(operation: str) -> TableShape:
    shapes = _file()["shapes"]
    return TableShape(operation, shapes[operation], shapes)


@cache
def _file() -> dict[str, Any]:
    path = Path(__file__).parents[2] / "catalog" / TABLE
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


@cache
def _installed(operation: str) -> TableShape | None:
    """The same from the data of the botocore that is installed, which is not imported; None where
    there is none.
    """
    import gzip
    from importlib.util import find_spec

    spec = find_spec("botocore")
    if spec is None or not spec.origin:
        return None
    try:
        path = max((Path(spec.origin).parent / "data" / "sagemaker").glob("*/service-2.json*"))
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        shapes = json.loads(raw)["shapes"]
        return TableShape(operation, shapes[operation], shapes)
    except (OSError, ValueError, KeyError):
        return None
