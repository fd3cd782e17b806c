"""Requests held against files: what would be sent changes only when somebody means it to.

`CLOUDTRAIN_REWRITE_GOLDEN=1 pytest tests/golden` writes the files anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloudtrain.document import parse_document
from cloudtrain.planning import Facts, SourceFacts, Target, make_plan
from cloudtrain.provider import get_provider
from cloudtrain.spec import spec_from_document

REWRITE = os.environ.get("CLOUDTRAIN_REWRITE_GOLDEN")  # read at import: the tests' own home has no such variable
FOLDER = Path(__file__).parent
JOB = """
name: digits
entrypoint: train.py
args: {lr: 1.0e-3, amp: bf16, verbose: true, sizes: [1, 2]}
resources: {nodes: 2, processes: 2}
inputs: {train-set: ./data}
checkpoints: {every: 10 min, keep: 5}
limits: {max_runtime: 6 h, restarts: 3}
env: {NCCL_DEBUG: WARN}
secrets: {HF_TOKEN: {local: "env:HF_TOKEN"}}
"""
TARGETS = {
    "local": Target(
        provider="local",
        where="this machine",
        max_nodes=99,
        grace_seconds=30,
        schemes=("",),
        facts={"python": "/venv/bin/python", "cores": 8, "system": "linux"},
    )
}


@pytest.mark.parametrize("provider", TARGETS)
def test_a_request_is_what_it_was(provider: str) -> None:
    spec, document = spec_from_document(parse_document(JOB, name="job.yaml"), Path("/home/me/job"), look=False)
    facts = Facts(
        run_id="digits-k2x9",
        time=1795213216.0,
        folder="/home/me/job",
        data_dir="/home/me/data",
        source=SourceFacts(root="/home/me/job", digest="9d1c4e" * 8, files=12, bytes=34000),
        git_commit="c0ffee",
        resume_from="digits-7f3a",
    )
    request = get_provider(provider).render(make_plan(spec, document, facts, TARGETS[provider]))
    path = FOLDER / f"{provider}.json"
    text = json.dumps(request.document, indent=2, ensure_ascii=False) + "\n"
    if REWRITE:
        path.write_text(text)
    assert text == path.read_text()
