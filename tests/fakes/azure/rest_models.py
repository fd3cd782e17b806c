"""Microsoft's models of Azure ML's REST APIs, as azure-ai-ml has them, judge the imitation."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import EnumMeta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from azure.ai.ml._restclient.arm_ml_service import models
from azure.ai.ml._restclient.runhistory import models as run_models

from tests.fakes.messages import Call, Response

_KINDS = {
    "Workspace": models.Workspace,
    "Code": models.CodeVersion,
    "StartPendingUpload": models.PendingUploadResponseDto,
    "Environment": models.EnvironmentVersion,
    "Data": models.DataVersionBase,
    "DataContainer": models.DataContainer,
    "Model": models.ModelVersion,
    "Job": models.JobBase,
    "Compute": models.ComputeResource,
    "Datastore": models.Datastore,
    "Secret": models.DatastoreSecrets,
    "Usage": models.Usage,
    "VmSize": models.VirtualMachineSize,
    "RunDetail": run_models.RunDetails,
    "Children": run_models.Run,
}
"""Name in a call, such as GetWorkspace or ListCodes -> what it answers."""
_JSON_TYPES = {datetime: str, timedelta: str, float: int | float}
_ACCEPTED = "hash_version: |'resources' on object of type 'SweepJob'|: 'Ray' is not in"
"""Values that the SDK sends, and the service takes, beside these models: a number, and older members."""
_UNKNOWN = "Could not find member '"


def contradictions(call: Call, answer: Response) -> list[str]:
    """Return where an answer contradicts its model; the service has members that no model has."""
    name = call.operation.removeprefix("Get").removeprefix("Put").removeprefix("List")
    kind = _KINDS.get(name.removesuffix("s"))
    if kind is None or answer.status >= 300 or call.service not in ("arm", "history"):
        return []
    document = json.loads(answer.body)
    items = document.get("value", [document])
    problems = [problem for item in items for problem in _problems(kind, item, call.operation)]
    return [problem for problem in problems if not problem.startswith(_UNKNOWN)]


def request_problems(operation: str, body: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a job or an asset, in the service's words for unknown members."""
    kind = _KINDS.get(operation.removeprefix("Put"))
    problems = _problems(kind, body, "body") if kind else ()
    return [problem for problem in problems if not re.search(_ACCEPTED, problem)]


def _problems(kind: Any, value: Any, place: str) -> Iterator[str]:
    origin = get_origin(kind)
    arguments = [item for item in get_args(kind) if item is not NoneType]
    if value is None or kind is Any or origin is Literal:
        return
    if origin in (Union, UnionType):
        yield from _problems(arguments[-1], value, place)  # an enum stands behind its text
    elif origin in (dict, list) and isinstance(value, origin):
        items: Any = value.items() if origin is dict else enumerate(value)
        for key, item in items:
            yield from _problems(arguments[-1], item, f"{place}.{key}")
    elif hasattr(kind, "_is_model") and isinstance(value, dict):
        yield from _member_problems(kind, value, place)
    elif isinstance(kind, EnumMeta):
        if str(value).lower() not in {item.value.lower() for item in list[Any](kind)}:
            yield f"{place}: {value!r} is not a {kind.__name__}"
    elif origin or not isinstance(value, _JSON_TYPES.get(kind, kind)):
        yield f"{place}: {value!r} is not of type {kind}"


def _member_problems(kind: Any, value: Mapping[str, Any], place: str) -> Iterator[str]:
    while vars(kind).get("__mapping__"):
        discriminator = kind._get_discriminator([])._rest_name
        kinds = kind.__mapping__
        kind = kinds.get(value.get(discriminator))
        if kind is None:
            yield f"{place}.{discriminator}: {value.get(discriminator)!r} is not in {[*kinds]}"
            return
    members = _members(kind)
    for name, member in members.items():
        if value.get(name) is None and NoneType not in get_args(member):
            yield f"{place}.{name} is missing"
    for name, item in value.items():
        if name in members:
            yield from _problems(members[name], item, f"{place}.{name}")
        else:
            yield f"{_UNKNOWN}{name}' on object of type '{kind.__name__}'."


@cache
def _members(kind: Any) -> dict[str, Any]:
    """Return the types of a model's members, optional if an answer does not have them."""
    kind({})  # it learns its members
    module = sys.modules[kind.__module__]
    names = {"_models": sys.modules[kind.__module__.removesuffix("._models")]}
    hints = get_type_hints(kind, vars(module), names)
    return {
        field._rest_name: hints[name] if "read" in field._visibility else hints[name] | None
        for name, field in kind._attr_to_rest_field.items()
    }
