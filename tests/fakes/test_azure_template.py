"""The evaluator of ARM templates: expressions, and templates that Azure refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.azure.expressions import ExpressionError, evaluate
from tests.fakes.azure.resource_kinds import problem
from tests.fakes.azure.template import Template
from tests.fakes.messages import ServiceError

GROUP = {
    "id": "/subscriptions/s/resourceGroups/lab",
    "name": "lab",
    "location": "eastus",
    "subscription": "s",
    "tenant": "t",
}
KIND = "Microsoft.ManagedIdentity/userAssignedIdentities"
IDENTITY = {"type": KIND, "apiVersion": "2024-11-30", "name": "one", "location": "eastus"}


def template(*resources: dict[str, Any], **parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "$schema": "x",
        "contentVersion": "1.0.0.0",
        "parameters": parameters,
        "resources": list(resources),
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[concat('it''s ', toLower('ONE'))]", "it's one"),
        ("[[literally]", "[literally]"),
        ("[if(empty(''), take('abc', 2), null())]", "ab"),
        ("[createObject('id', 'x').ID]", "x"),
        ("[cidrSubnet('10.20.0.0/16', 24, 16)]", "10.20.16.0/24"),
    ],
)
def test_expressions_are_evaluated(text: str, value: object) -> None:
    assert evaluate(text, {}) == value


@pytest.mark.parametrize(
    "text", ["[concat('a']", "[concat('a'))]", "[1 +]", "[nothing('x')]", "['a'.b.c('d')]"]
)
def test_malformed_expression_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, {})


@pytest.mark.parametrize(
    ("document", "arguments", "message"),
    [
        (
            template(),
            {"nmae": {"value": "x"}},
            "The template parameters 'nmae' in the parameters file are not valid",
        ),
        (
            template(a={"type": "string"}),
            {},
            "The value for the template parameter 'a' is not provided",
        ),
        (template(a={"type": "int"}), {"a": {"value": "1"}}, "expected int"),
        (
            template(a={"type": "string", "allowedValues": ["x"]}),
            {"a": {"value": "y"}},
            "not part of the allowed",
        ),
        (
            template(a={"type": "string", "maxLength": 1}),
            {"a": {"value": "yy"}},
            "Length or value is 2",
        ),
        (template({**IDENTITY, "dependson": []}), {}, "Could not find member 'dependson'"),
        (template({**IDENTITY, "name": "a/b"}), {}, "identical number of segments"),
        (
            template({**IDENTITY, "dependsOn": ["/nowhere"]}),
            {},
            "The resource '/nowhere' is not defined",
        ),
        (template(IDENTITY, IDENTITY), {}, "defined multiple times"),
        (template({**IDENTITY, "name": "[parameters('gone')]"}), {}, "cannot be evaluated"),
        ({**template(), "resource": []}, {}, "Could not find member 'resource'"),
    ],
)
def test_invalid_template_is_refused(
    document: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ServiceError, match="InvalidTemplate") as refused:
        Template(document, arguments, GROUP).planned()
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("kind", "version", "name", "body", "code"),
    [
        ("Microsoft.Made/up", "2024-11-30", "one", {}, "InvalidResourceType"),
        (KIND, "2024-11-31", "one", {"location": "eastus"}, "NoRegisteredProviderFound"),
        (KIND, "2024-11-30", "x", {"location": "eastus"}, "InvalidResourceName"),
        (KIND, "2024-11-30", "one", {}, "LocationRequired"),
        (
            KIND,
            "2024-11-30",
            "one",
            {"location": "eastus", "properties": {"isolationscope": "None"}},
            "InvalidRequestContent",
        ),
    ],
)
def test_invalid_resource_is_refused(
    kind: str, version: str, name: str, body: dict[str, Any], code: str
) -> None:
    message = problem(kind, version, name, body)
    assert message is not None
    assert message[0] == code
