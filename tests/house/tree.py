"""The map of the repository: every file with the first line that it says about itself.

`python tests/house/tree.py` prints it, `--write` puts it into README.md.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cloudtrain", "entrypoints", "examples", "tests")
OTHERS = {
    "README.md": "this page",
    "CHANGELOG.md": "what changed, newest first",
    "LICENSE": "Apache-2.0",
    "Makefile": "demo, test, check, bench",
    "pyproject.toml": "the package, its extras, and the settings of every tool",
    "constraints.txt": "the versions that were tested together",
    ".ci/run": "what runs before anything lands: make check, with a Docker engine where one can be had",
    ".ci/engine": "a Docker engine and a base image for tests, on a bare Debian machine",
    ".github/": "the same on GitHub, and what its bot keeps up to date",
    "docker/README.md": "the image: how it is built, pinned and renewed, what is in it, what each cloud needs",
    "docker/Dockerfile": "one for GPUs and CPUs, both clouds, every builder",
    "docker/train": "what `docker run IMAGE train` does",
    "docker/torch-cuda.txt, torch-cpu.txt": "torch and what it needs, with hashes; from torch.in",
    "docker/requirements.txt": "what else is in it, with hashes; from requirements.in",
    "infra/": "what an account needs (to come)",
}
DATA = {
    "cloudtrain/catalog/aws.csv": "SageMaker's machines: GPUs, network, dated prices",
    "cloudtrain/catalog/azure.csv": "Azure ML's machines, likewise",
    "cloudtrain/catalog/dlc.csv": "AWS's PyTorch containers: versions, newest first",
    "cloudtrain/catalog/dlc_accounts.csv": "the registry of those containers in each region",
    "cloudtrain/cli/starter/job.yaml": "what `cloudtrain init` writes",
    "examples/digits/job.yaml": "the job of `make demo`",
    "examples/github-actions/smoke.yml": "a workflow to copy: rehearses each pull request's job, needs no account",
    "examples/github-actions/train-on-aws.yml": "another: starts a job on SageMaker without a stored key",
    "examples/github-actions/train-on-azure.yml": "the same on Azure ML",
    "examples/own-dataset/job.yaml": "a model and a data set of one's own, for the shared trainer",
    "tests/bench/README.md": "the figures, with machine and command",
}


def tree() -> str:
    """One line per file, folder by folder."""
    lines = [f"{name:<44} {text}" for name, text in OTHERS.items()]
    for folder in FOLDERS:
        lines.append("")
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and "__pycache__" not in name and (text := _about(path, name)):
                lines.append(f"{name:<44} {text}")
    return "\n".join(lines)


def _about(path: Path, name: str) -> str:
    if path.suffix != ".py":
        return DATA.get(name, "")
    first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
    return first.rstrip(".")


README = ROOT / "README.md"
BLOCK = re.compile(r"(?<=<!-- tree -->\n```\n).*?(?=\n```)", re.DOTALL)

if __name__ == "__main__":
    if "--write" in sys.argv:
        README.write_text(BLOCK.sub(lambda _: tree(), README.read_text()))
    else:
        print(tree())
