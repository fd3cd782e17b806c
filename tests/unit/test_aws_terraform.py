"""The Terraform module of infra/aws: the template itself, its parameters and outputs, and
terraform's own verdict.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cloudtrain.bundle import bundled
from tests.support.aws_template import template
from tests.support.in_process import call
from tests.support.limits import HANG_SECONDS

MODULE = bundled("infra") / "aws" / "terraform"
MAIN, VARIABLES, OUTPUTS = (
    (MODULE / f"{name}.tf").read_text() for name in ("main", "variables", "outputs")
)
PLUGINS = Path("/opt/tf-plugins")
"""The folder of Terraform's providers on machines without a network."""


def variable_of() -> dict[str, str]:
    """Return the variable that gives each parameter of the template its value."""
    parameters = MAIN.partition("parameters = {")[2].partition("\n  }")[0]
    return dict(re.findall(r"^    (\w+) += .*?\bvar\.(\w+)", parameters, re.MULTILINE))


def test_the_module_deploys_the_template_itself_so_both_grant_the_same_actions() -> None:
    match = re.search(r'template_body = file\("\$\{path\.module\}/(.+?)"\)', MAIN)
    assert match
    assert (MODULE / match[1]).resolve() == (bundled("infra") / "aws" / "cloudtrain.yaml").resolve()
    assert re.findall(r"^resource .*$", MAIN + VARIABLES + OUTPUTS, re.MULTILINE) == [
        'resource "aws_cloudformation_stack" "cloudtrain" {'
    ], "nothing beside the stack, so nothing that grants more"
    assert 'capabilities  = ["CAPABILITY_IAM"]' in MAIN


def test_the_module_takes_every_parameter_and_gives_every_output() -> None:
    assert variable_of().keys() == template()["Parameters"].keys()
    variables = set(re.findall(r'^variable "(\w+)"', VARIABLES, re.MULTILINE))
    assert variables == {"name", *variable_of().values()}
    assert set(re.findall(r"var\.(\w+)", MAIN)) == variables, "none is taken and not used"
    assert set(re.findall(r'outputs(?:, |\[)"(\w+)"', OUTPUTS)) == template()["Outputs"].keys()


def test_defaults_of_the_module_are_those_of_the_template() -> None:
    for name, variable in variable_of().items():
        [default] = re.findall(
            rf'variable "{variable}" {{.*?default     = (.+?)\n', VARIABLES, re.DOTALL
        )
        text = {"[]": "", "false": "no", "true": "yes"}.get(default, default.strip('"'))
        assert text == str(template()["Parameters"][name]["Default"]), name


def test_template_command_prints_one_file_that_stands_beside_the_template() -> None:
    result = call("infra", "template", "--provider", "aws", "--format", "terraform")
    assert result.code == 0
    assert 'file("${path.module}/cloudtrain.yaml")' in result.out
    assert "../" not in result.out
    for name in (
        'variable "budget"',
        'output "role"',
        "cloudtrain infra template --provider aws > cloudtrain.yaml",
    ):
        assert name in result.out


@pytest.mark.skipif(shutil.which("terraform") is None, reason="there is no terraform here")
def test_terraform_formats_it_so() -> None:
    process = subprocess.run(["terraform", "fmt", "-check", "-diff", str(MODULE)], capture_output=True, text=True,
                          check=False, timeout=HANG_SECONDS)  # fmt: skip
    assert (process.returncode, process.stdout) == (0, "")


@pytest.mark.skipif(shutil.which("terraform") is None, reason="there is no terraform here")
@pytest.mark.skipif(not PLUGINS.is_dir(), reason="there is no provider for terraform here")
def test_terraform_finds_it_valid(tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text(
        call("infra", "template", "--provider", "aws", "--format", "terraform").out
    )
    (tmp_path / "cloudtrain.yaml").write_text(call("infra", "template", "--provider", "aws").out)
    env = {key: value for key, value in os.environ.items() if not key.startswith("TF_")} | {
        "CHECKPOINT_DISABLE": "1"
    }

    def terraform(*words: str) -> None:
        argv = ["terraform", f"-chdir={tmp_path}", *words]
        process = subprocess.run(
            argv, env=env, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
        )
        assert process.returncode == 0, process.stderr + process.stdout

    terraform("init", f"-plugin-dir={PLUGINS}", "-input=false", "-backend=false")
    terraform("validate")
