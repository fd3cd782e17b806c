"""The reference of the templates in infra/: their parameters, as the templates declare them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import yaml

from cloudtrain.bundle import bundled
from reference_page import page, table

Parameter = tuple[str, Any, str, list[Any]]
"""Name, default, meaning, allowed values."""


class _Loader(yaml.SafeLoader):
    """YAML of a CloudFormation template; its short forms, such as `!Ref`, are left out."""


_Loader.add_multi_constructor("!", lambda *_: None)


def infra_page() -> str:
    """Return the page with the parameters of both templates."""
    parts = [
        "Parameters of the templates that `cloudtrain infra template` prints. How to deploy a"
        " template: [AWS](../guides/set-up-aws.md), [Azure](../guides/set-up-azure.md).\n",
        "## AWS\n",
        "For `aws cloudformation deploy --parameter-overrides NAME=VALUE`. The Terraform module has"
        " a variable for each.\n",
        _parameters(_of_aws()),
        "## Azure\n",
        "For `az deployment group create --parameters NAME=VALUE`; a list is JSON.\n",
        _parameters(_of_azure()),
    ]
    return page("Parameters of the templates", "\n".join(parts))


def _of_aws() -> Iterable[Parameter]:
    text = (bundled("infra") / "aws" / "cloudtrain.yaml").read_text(encoding="utf-8")
    template = yaml.load(text, _Loader)
    for name, declaration in template["Parameters"].items():
        allowed = declaration.get("AllowedValues", [])
        yield name, declaration["Default"], declaration["Description"], allowed


def _of_azure() -> Iterable[Parameter]:
    template = json.loads((bundled("infra") / "azure" / "template.json").read_text("utf-8"))
    for name, declaration in template["parameters"].items():
        meaning = declaration["metadata"]["description"]
        yield name, declaration["defaultValue"], meaning, declaration.get("allowedValues", [])


def _parameters(parameters: Iterable[Parameter]) -> str:
    rows = []
    for name, default, meaning, allowed in parameters:
        text = default if isinstance(default, str) else json.dumps(default)
        values = ", ".join(f"`{value}`" for value in allowed)
        choices = f" (one of {values})" if values else ""
        rows.append((f"`{name}`", f"`{text}`" if text else "empty", f"{meaning}{choices}"))
    return table(("parameter", "default", "meaning"), rows)
