"""Jobs of the golden requests, and their plans, which contain no trace of this machine."""

# ruff: noqa: E501  (an address is one line)

from __future__ import annotations

import os
from pathlib import Path

from cloudtrain.api.preflight import find_issues
from cloudtrain.planning.plan import LocalInput, Plan, PlanContext, SourceSummary, make_plan
from cloudtrain.providers import get_provider
from cloudtrain.settings import Settings
from cloudtrain.spec.load import spec_from_document
from cloudtrain.spec.yaml_document import parse_document

# Read at import: the tests' own home has no such variable.
REWRITE = os.environ.get("CLOUDTRAIN_REWRITE_GOLDEN")
"""True if the files of requests and of messages are written anew."""

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
ON_SLURM = """
name: digits
entrypoint: train.py
args: {lr: 1.0e-3}
resources: {nodes: 2, gpus: 4, spot: true}
inputs: {train-set: "file:///shared/mnist"}
limits: {max_runtime: 6 h, max_wait: 12 h, restarts: 3}
env: {NCCL_DEBUG: WARN}
secrets: {HF_TOKEN: {slurm: "file:/home/me/.token"}, KEY: {slurm: "env:MY_KEY"}}
tags: {team: vision & speech}
slurm:
  partition: gpu
  spot_partition: preempt
  account: vision
  qos: low
  constraint: h100
  cpus: 32
  memory: 200G
  request: {mail-user: me@here, mail-type: END, contiguous: true}
"""
ON_SLURM_IN_A_CONTAINER = """
name: digits
entrypoint: train.py
image: {slurm: "nvcr.io/nvidia/pytorch:25.09-py3"}
resources: {nodes: 2, gpus: 4}
inputs: {train-set: "file:///shared/mnist"}
secrets: {KEY: {slurm: "env:MY_KEY"}}
slurm: {container: CONTAINER, cpus: 32}
"""
IN_CONTAINERS = """
name: digits
entrypoint: train.py
args: {lr: 1.0e-3}
image: {docker: "train:1", aws: "dlc:pytorch-2.8"}
resources: {nodes: 2, gpus: 2, shm: 16 GiB}
inputs: {train-set: {local: ./data, aws: "s3://data/mnist/"}, table: ../table.csv}
limits: {max_runtime: 6 h, restarts: 3}
env: {NCCL_DEBUG: WARN}
secrets: {HF_TOKEN: {local: "env:HF_TOKEN"}, WANDB_API_KEY: {docker: "env:WANDB", local: "env:WANDB_LOCAL"}}
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
UNCOMPRESSED = """
name: digits
resources: {instance: {aws: ml.m5.xlarge}}
limits: {max_runtime: 1 h}
aws: {output: s3://models/digits, kms_key: alias/k, compress_output: false}
"""
QUEUED = """
name: digits
resources: {nodes: 2, instance: {aws: ml.g5.xlarge}}
limits: {max_runtime: 1 h, retries: 2}
image: dlc:pytorch-2.8
aws: {queue: team, share: vision, priority: 10}
"""
RESERVED = """
name: digits
resources: {instance: {aws: ml.p4d.24xlarge}}
limits: {max_runtime: 1 h, max_cost: 1 USD}
aws: {training_plan: "arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine"}
"""
RESERVED_FIRST = """
name: digits
resources: {nodes: 2, gpus: 8, instance: {aws: [ml.p5.48xlarge, ml.p4d.24xlarge]}}
limits: {max_runtime: 6 h, max_cost: 1000 USD}
aws:
  training_plan:
    ml.p5.48xlarge: arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine
"""
AZURE = """
name: digits
entrypoint: train.py
args: {lr: 1.0e-3, amp: bf16, verbose: true, note: "${{inputs.labels}} – for 5 € 😀"}
image: myregistry.azurecr.io/train@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
resources: {nodes: 2, gpus: 8, gpu: [A100-80GB, H100], shm: 16 GiB}
inputs:
  train-set: azureml://datastores/data/paths/mnist
  labels: azureml://datastores/data/paths/labels.csv
  words: {uri: "azureml:words:3", type: table}
  bert: {uri: "azureml:bert:1", type: model}
  mean: https://example.org/mean.npy
  old: {azure: "wasbs://box@account.blob.core.windows.net/old/", aws: "s3://data/old/"}
  extra: ./extra
  table: ../table.csv
  live: {uri: "azureml://datastores/data/paths/live/", mode: stream}
checkpoints: {every: 10 min, keep: 5}
limits: {max_runtime: 6 h, max_cost: 100 USD, restarts: 3}
env: {NCCL_DEBUG: WARN}
secrets:
  HF_TOKEN: {azure: "keyvault:my-vault/hf-token", aws: "ssm:hf-token"}
  WANDB_API_KEY: {azure: "keyvault:https://my-vault.vault.azure.net/secrets/wandb"}
tags: {team: vision}
azure: {identity: user, services: [ssh, tensorboard], ssh_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI me@here}
"""
AZURE_SPOT = """
name: digits
resources: {instance: {azure: Standard_NC4as_T4_v3}, gpus: 1, spot: true}
limits: {max_runtime: 6 h}
"""
AZURE_CLUSTER = """
name: digits
entrypoint: -m digits.train
resources: {nodes: 4, gpus: 8, processes: 2}
limits: {max_runtime: 1 h}
image: {build: docker/Dockerfile}
checkpoints: {uri: "azureml://datastores/mine/paths/kept/digits"}
secrets: {HF_TOKEN: {azure: "keyvault:my-vault/hf-token"}}
azure: {compute: my-cluster, services: [jupyter, vscode], datastore: mine}
"""
AWS_REQUEST = """
name: digits
resources: {instance: {aws: ml.m5.xlarge}}
limits: {max_runtime: 1 h}
inputs: {train: s3://data/mnist/}
tags: {team: vision}
aws:
  subnets: [subnet-1]
  security_groups: [sg-1]
  request:
    ExperimentConfig: {ExperimentName: digits, TrialName: null}
    AlgorithmSpecification: {TrainingImageConfig: {TrainingRepositoryAccessMode: Vpc}}
    InputDataConfig:
      - {ChannelName: train, ShuffleConfig: {Seed: 7}}
      - ChannelName: table
        DataSource: {FileSystemDataSource: {FileSystemId: fs-0123456789abcdef0, FileSystemType: FSxLustre, DirectoryPath: /fsx, FileSystemAccessMode: ro}}
    Tags: [{Key: team, Value: speech}, {Key: cost-center, Value: "7"}]
"""
AWS_FILE_SYSTEMS = """
name: digits
resources: {instance: {aws: ml.m5.xlarge}}
limits: {max_runtime: 1 h}
inputs:
  corpus: "fsx://fs-0123456789abcdef0/mount/corpus/"
  words: {aws: "efs://fs-0123456789abcdef0", mode: stream}
aws: {subnets: [subnet-1], security_groups: [sg-1]}
"""
AZURE_REQUEST = """
name: digits
resources: {instance: {azure: Standard_NC4as_T4_v3}, gpus: 1}
limits: {max_runtime: 1 h}
image: myregistry.azurecr.io/train:1
inputs: {train: azureml://datastores/data/paths/mnist/}
azure:
  identity: managed
  request:
    description: digits with a larger model
    experiment_name: vision
    display_name: null
    identity: {client_id: 12345678-1234-1234-1234-123456789012}
    resources: {docker_args: --ulimit memlock=-1}
    inputs: {train: {mode: direct}}
    outputs: {model: {name: digits, type: custom_model}}
"""
AZURE_OUTPUTS = """
name: digits
args: {cache: "${outputs.prepared}"}
resources: {instance: {azure: Standard_NC4as_T4_v3}, gpus: 1}
limits: {max_runtime: 1 h}
image: myregistry.azurecr.io/train:1
azure:
  docker_args: --ulimit memlock=-1
  outputs:
    prepared: azureml://datastores/data/paths/prepared/
    table: {type: mltable, mode: upload, name: digits-table}
    model: {type: custom_model, name: digits}
"""
CASES = {
    "local": ("local", PLAIN),
    "docker": ("docker", IN_CONTAINERS),
    "slurm": ("slurm", ON_SLURM),
    "slurm-pyxis": ("slurm", ON_SLURM_IN_A_CONTAINER.replace("CONTAINER", "pyxis")),
    "slurm-apptainer": ("slurm", ON_SLURM_IN_A_CONTAINER.replace("CONTAINER", "apptainer")),
    "aws": ("aws", FULL),
    "aws-spot": ("aws", SPOT),
    "aws-kept": ("aws", KEPT),
    "aws-uncompressed": ("aws", UNCOMPRESSED),
    "aws-training-plan": ("aws", RESERVED),
    "aws-training-plan-first": ("aws", RESERVED_FIRST),
    "aws-queue": ("aws", QUEUED),
    "azure": ("azure", AZURE),
    "azure-spot": ("azure", AZURE_SPOT),
    "azure-cluster": ("azure", AZURE_CLUSTER),
    "aws-request": ("aws", AWS_REQUEST),
    "aws-file-systems": ("aws", AWS_FILE_SYSTEMS),
    "azure-request": ("azure", AZURE_REQUEST),
    "azure-outputs": ("azure", AZURE_OUTPUTS),
}
TUNING = """
name: digits
entrypoint: train.py
args: {lr: 1.0e-3, epochs: 3, verbose: true}
image: 123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1
resources: {instance: {aws: ml.m5.xlarge}}
limits: {max_runtime: 1 h}
metrics: {accuracy: 'Accuracy: ([0-9.]+)'}
sweep:
  objective: {metric: score, goal: maximize}
  space: {lr: "loguniform(1e-4, 1e-1)", batch-size: [16, 32], width: "logint(8, 512)", amp: [true, false, bf16], drop: "uniform(0, 0.5)"}
  trials: 20
  parallel: 4
  seed: 7
  budget: {max_cost: 10 USD, max_time: 6 h}
"""
HYPERBAND = """
name: digits
image: 123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1
resources: {instance: {aws: ml.g4dn.xlarge}, gpus: 1, spot: true}
limits: {max_runtime: 1 h, retries: 2}
aws: {subnets: [subnet-1], security_groups: [sg-1], encrypt_traffic: true, kms_key: alias/k}
sweep:
  objective: {metric: val_loss, goal: minimize}
  method: asha
  space: {lr: "loguniform(1e-4, 1e-1)"}
  trials: 9
  early_stopping: {max: 27}
"""
TUNING_GRID = """
name: digits
image: 123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1
resources: {instance: {aws: [ml.m5.xlarge, ml.c5.xlarge]}}
limits: {max_runtime: 1 h}
sweep:
  objective: {metric: val_loss, goal: minimize}
  method: grid
  space: {lr: [0.1, 0.01], layers: "int(1, 3)"}
"""
AZURE_RANDOM = """
name: digits
entrypoint: train.py
args: {lr: 1.0e-3, epochs: 3, verbose: true}
image: myregistry.azurecr.io/train:1
resources: {instance: {azure: Standard_DS3_v2}, shm: 4 GiB}
inputs: {train-set: {azure: "azureml://datastores/workspaceblobstore/paths/mnist/"}}
limits: {max_runtime: 1 h}
sweep:
  objective: {metric: score, goal: maximize}
  method: random
  space: {lr: "loguniform(1e-4, 1e-1)", batch-size: [16, 32], width: "logint(8, 512)", amp: [true, false, bf16], drop: "uniform(0, 0.5)"}
  trials: 20
  parallel: 4
  seed: 7
  budget: {max_cost: 10 USD, max_time: 6 h}
"""
AZURE_BAYESIAN = """
name: digits
image: myregistry.azurecr.io/train:1
resources: {instance: {azure: Standard_NC4as_T4_v3}, gpus: 1, spot: true}
limits: {max_runtime: 1 h}
azure: {identity: managed}
sweep:
  objective: {metric: val_loss, goal: minimize}
  space: {lr: "uniform(0.001, 0.1)", width: "int(8, 512)"}
  trials: 40
"""
AZURE_GRID = """
name: digits
image: myregistry.azurecr.io/train:1
resources: {nodes: 2, gpus: 1}
limits: {max_runtime: 1 h}
azure: {compute: my-cluster, datastore: mine}
sweep:
  objective: {metric: val_loss, goal: minimize}
  method: grid
  space: {lr: [0.1, 0.01], layers: "int(1, 3)"}
"""
BANDIT = "early_termination: {type: bandit, slack_factor: 0.1, delay_evaluation: 5}"
SWEEPS = {
    "aws-tuning": ("aws", TUNING),
    "aws-hyperband": ("aws", HYPERBAND),
    "aws-grid": ("aws", TUNING_GRID),
    "azure-random": ("azure", AZURE_RANDOM),
    "azure-bayesian": ("azure", AZURE_BAYESIAN),
    "azure-bandit": ("azure", AZURE_BAYESIAN.replace("identity: managed", BANDIT)),
    "azure-grid": ("azure", AZURE_GRID),
}
"""Sweeps whose requests the clouds' own services take."""
VALUES = {
    "stop_grace": 30,
    "python": "/venv/bin/python",
    "docker.memory": 8 * 2**30,
    "aws.region": "us-east-1",
    "aws.role": "arn:aws:iam::123456789012:role/train",
    "aws.bucket": "my-bucket",
    "aws.poll": 10.0,
    "azure.subscription": "12345678-1234-1234-1234-123456789abc",
    "azure.resource_group": "my-group",
    "azure.workspace": "my-workspace",
    "azure.location": "East US",
    "azure.datastore": "workspaceblobstore",
    "azure.poll": 10.0,
    "azure.stop_grace": 60,
}
SETTINGS = Settings(values=VALUES, origins=dict.fromkeys(VALUES, "cloudtrain.toml:1"))


EARLIER = {
    "slurm": "/shared/runs/digits-7f3a/checkpoints",
    "local": "/home/me/data/runs/digits-7f3a/checkpoints",
    "docker": "/home/me/data/runs/digits-7f3a/checkpoints",
    "aws": "s3://my-bucket/earlier/checkpoints",
    "azure": (
        "azureml://datastores/workspaceblobstore/paths/cloudtrain/runs/digits-7f3a/checkpoints"
    ),
}
"""Checkpoints of the run that a plan resumes."""


UPLOADS = {
    "extra": LocalInput(path="/home/me/job/extra", files=3, bytes=5000, digest="e3b0c4" * 8),
    "table": LocalInput(
        path="/home/me/table.csv", files=1, bytes=900, digest="7ab1e5" * 8, file="table.csv"
    ),
}
"""Inputs of this machine, as they were read."""


def plan_of(provider: str, text: str) -> Plan:
    spec, document = spec_from_document(
        parse_document(text, name="job.yaml"), Path("/home/me/job"), look=False
    )
    context = PlanContext(
        run_id="digits-k2x9",
        time=1795213216.0,
        folder="/home/me/job",
        data_dir="/home/me/data",
        source=SourceSummary(root="/home/me/job", digest="9d1c4e" * 8, files=12, bytes=34000),
        local_files=("table",),
        uploads=UPLOADS if provider == "azure" and "extra" in text else {},
        git_commit="c0ffee",
        git_dirty=True,
        resume_run="digits-7f3a",
        resume_from=EARLIER[provider] if "spot" not in text else "",
    )
    owner = get_provider(provider)
    target = owner.target(SETTINGS, spec)
    return make_plan(spec, document, context, target, render=owner.render, check=find_issues)
