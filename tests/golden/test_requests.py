"""Requests held against files: what would be sent changes only when somebody means it to.

`CLOUDTRAIN_REWRITE_GOLDEN=1 pytest tests/golden` writes the files anew.
"""

# ruff: noqa: E501  (an address is one line)

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloudtrain.document import parse_document
from cloudtrain.planning import Facts, Plan, SourceFacts, make_plan
from cloudtrain.provider import get_provider
from cloudtrain.settings import Settings
from cloudtrain.spec import spec_from_document

REWRITE = os.environ.get("CLOUDTRAIN_REWRITE_GOLDEN")  # read at import: the tests' own home has no such variable
FOLDER = Path(__file__).parent
PLAIN = """
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
FULL = """
name: digits
entrypoint: train.py
args: {lr: 1.0e-3, amp: bf16, verbose: true}
image: 123456789012.dkr.ecr.us-east-1.amazonaws.com/train@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
resources: {nodes: 2, gpus: 8, gpu: [A100-80GB, H100], shm: 16 GiB}
inputs:
  train-set: s3://data/mnist/
  test: {uri: "s3://data/streamed", mode: stream}
  labels: s3://data/labels.csv
checkpoints: {every: 10 min, keep: 5}
limits: {max_runtime: 6 h, max_wait: 12 h, max_cost: 500 USD, retries: 2, restarts: 3}
env: {NCCL_DEBUG: WARN}
secrets: {HF_TOKEN: {aws: "secretsmanager:hf-token"}}
tags: {team: vision}
aws:
  subnets: [subnet-1, subnet-2]
  security_groups: [sg-1]
  kms_key: arn:aws:kms:us-east-1:123456789012:key/k
  encrypt_traffic: true
  remote_debug: true
  infra_check: true
  tensorboard: true
"""
SPOT = """
name: digits
resources: {instance: {aws: ml.g4dn.xlarge}, gpus: 1, spot: true}
limits: {max_runtime: 6 h}
"""
KEPT = """
name: digits
resources: {instance: {aws: ml.m5.xlarge}, disk: 100 GB}
limits: {max_runtime: 1 h}
image: dlc:pytorch-2.8
aws: {keep_alive: 30 min}
"""
CASES = {"local": ("local", PLAIN), "aws": ("aws", FULL), "aws-spot": ("aws", SPOT), "aws-kept": ("aws", KEPT)}
VALUES = {
    "stop_grace": 30,
    "python": "/venv/bin/python",
    "aws.region": "us-east-1",
    "aws.role": "arn:aws:iam::123456789012:role/train",
    "aws.bucket": "my-bucket",
    "aws.poll": 10.0,
}
SETTINGS = Settings(values=VALUES, origins=dict.fromkeys(VALUES, "cloudtrain.toml:1"))


def plan_of(provider: str, text: str) -> Plan:
    spec, document = spec_from_document(parse_document(text, name="job.yaml"), Path("/home/me/job"), look=False)
    place = {"local": "/home/me/data/runs/digits-7f3a/checkpoints"}.get(provider, "s3://my-bucket/earlier/checkpoints")
    facts = Facts(
        run_id="digits-k2x9",
        time=1795213216.0,
        folder="/home/me/job",
        data_dir="/home/me/data",
        source=SourceFacts(root="/home/me/job", digest="9d1c4e" * 8, files=12, bytes=34000),
        git_commit="c0ffee",
        git_dirty=True,
        resume_run="digits-7f3a",
        resume_from=place if "spot" not in text else "",
    )
    return make_plan(spec, document, facts, get_provider(provider).target(SETTINGS, spec))


@pytest.mark.parametrize("case", CASES)
def test_a_request_is_what_it_was(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    provider, text = CASES[case]
    request = get_provider(provider).render(plan_of(provider, text))
    content = {"request": request.document, "job": request.job}
    path = FOLDER / f"{case}.json"
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    if REWRITE:
        path.write_text(text)
    assert text == path.read_text()
