"""The AWS stack of an account: its template, and its outputs as settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cloudtrain.bundle import bundled
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.providers.infrastructure import Deployment, Infrastructure, SettingValue

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient

_TEXTS = {
    "region": "Region",
    "role": "Role",
    "bucket": "Bucket",
    "repository": "Repository",
    "kms_key": "KmsKey",
    "queue": "Queue",
}

_LISTS = {"subnets": "Subnets", "security_groups": "SecurityGroups"}
"""Setting -> output of the stack."""

_MEANINGS = {
    "SubmitterPolicy": "policy to attach to people who submit",
    "GitHubRole": "role for the GitHub workflow",
}
"""Output that is not a setting -> its meaning."""


class AwsInfrastructure(Infrastructure):
    """The stack of one name in one region."""

    formats = ("cloudformation", "terraform")

    def __init__(self, cloud: AwsClient | None, name: str) -> None:
        """`cloud`: None if no region is known, which is enough for the template."""
        self._cloud = cloud
        self._name = name

    def template(self, format_: str) -> str:
        """Return the CloudFormation template, or the Terraform module that deploys it."""
        folder = bundled("infra") / "aws"
        if format_ == "cloudformation":
            return (folder / "cloudtrain.yaml").read_text(encoding="utf-8")

        files = [folder / "terraform" / f"{name}.tf" for name in ("main", "variables", "outputs")]
        module = "\n".join(path.read_text(encoding="utf-8") for path in files)
        module = module.replace("../cloudtrain.yaml", "cloudtrain.yaml")
        command = "cloudtrain infra template --provider aws > cloudtrain.yaml"
        return f"# Put the template into the same folder: {command}\n{module}"

    def deployment(self) -> Deployment:
        """Read the outputs of the stack."""
        if self._cloud is None:
            hint = "--region us-east-1, or [aws] region in cloudtrain.toml"
            raise UsageError("aws.region is not set", hint=hint)

        outputs = self._outputs(self._cloud)
        other_outputs = {
            meaning: outputs[name] for name, meaning in _MEANINGS.items() if name in outputs
        }
        return Deployment(settings=settings_of(outputs), outputs=other_outputs)

    def _outputs(self, cloud: AwsClient) -> dict[str, str]:
        """Return the outputs of the stack. Raise CloudError if the template's are missing."""
        stack = f"the stack {self._name} in {cloud.region}"
        try:
            answer = cloud.call("cloudformation", "describe_stacks", StackName=self._name)
        except CloudError as error:
            if error.code == "ValidationError" and "does not exist" in error.what:
                hint = (
                    "--name and --region choose another one; cloudtrain infra template --provider"
                    " aws prints a template for aws cloudformation deploy"
                )
                raise CloudError(f"{stack} does not exist", code="NotFound", hint=hint) from error
            raise

        description = answer["Stacks"][0]
        listed = description.get("Outputs", [])
        outputs = {output["OutputKey"]: output["OutputValue"] for output in listed}
        if "Role" not in outputs:
            reason = description.get("StackStatusReason", "the output Role is missing")
            raise CloudError(
                f"{stack} is not ready ({description['StackStatus']}): {reason}",
                code=description["StackStatus"],
                hint=f"aws cloudformation describe-stack-events --stack-name {self._name}",
            )

        return outputs


def settings_of(outputs: Mapping[str, str]) -> dict[str, SettingValue]:
    """Return the outputs of a stack as settings of cloudtrain.toml."""
    settings: dict[str, SettingValue] = {}
    for key, name in _TEXTS.items():
        if name in outputs:
            settings[f"aws.{key}"] = outputs[name]
    for key, name in _LISTS.items():
        if name in outputs:
            settings[f"aws.{key}"] = tuple(outputs[name].split(","))

    return settings
