"""Variables that AWS's own containers set for a training script. Standard library only.

After environment.py of aws/sagemaker-training-toolkit 5.1; SM_MASTER_*, SM_HOST_COUNT and
SM_CURRENT_HOST_RANK are those of the SageMaker SDK's ModelTrainer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudtrain_launcher.contract import Job, NodeContext, read_object
from cloudtrain_wire.visible_gpus import visible_gpus

OWN_CHANNELS = "cloudtrain-"
"""Prefix of channels with parts of the job itself."""

MAX_ARGUMENTS = 30_000
"""Characters of arguments above which variables lack them: Linux limits the size of all."""

_TOOLKITS_OWN = ("sagemaker_", "_tuning_objective_metric")
_LOG_LEVEL = 20  # logging.INFO


def toolkit_variables(
    job: Job, context: NodeContext, values: Any, argv: list[str]
) -> dict[str, str]:
    """Return the `SM_*` variables of a SageMaker node. Raise RuntimeError without its files.

    `values` and `argv`: the job's arguments with paths of this node.
    """
    config = Path(context.config_dir)
    base = config.parents[1]
    resources = read_object(config / "resourceconfig.json", "SageMaker's list of the job's nodes")
    channels = _channels(config / "inputdataconfig.json")
    given = {name: _decoded(text) for name, text in context.hyperparameters.items()}
    hps = {name: value for name, value in given.items() if not name.startswith(_TOOLKITS_OWN)}
    if isinstance(values, Mapping):
        hps |= {name: _decoded(value) for name, value in values.items()}
    if len(json.dumps([hps, argv])) > MAX_ARGUMENTS:
        hps = {}
        argv = []

    groups = {group["instance_group_name"]: group for group in resources.get("instance_groups", [])}
    own_group = resources.get("current_group_name", "homogeneousCluster")
    hosts = sorted(resources["hosts"])
    group_hosts = groups.get(own_group, {}).get("hosts", [])
    node = {
        "hosts": hosts,
        "current_host": resources["current_host"],
        "current_instance_type": resources.get("current_instance_type", "local"),
        "current_instance_group": own_group,
        "current_instance_group_hosts": group_hosts,
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "distribution_instance_groups": [own_group],
        "is_hetero": len(groups) > 1,
        "network_interface_name": resources.get("network_interface_name", "eth0"),
        "resource_config": resources,
        "input_data_config": channels,
        "input_dir": str(base / "input"),
        "input_config_dir": str(config),
        "model_dir": context.model_dir,
        "module_dir": str(Path.cwd()),
        "module_name": job.target.removesuffix(".py"),
        "user_entry_point": job.target,
        "output_dir": str(base / "output"),
        "output_data_dir": context.output_dir,
        "output_intermediate_dir": str(base / "output/intermediate"),
        "num_cpus": os.cpu_count(),
        "num_gpus": visible_gpus(),
        "num_neurons": 0,
        "framework_module": None,
        "log_level": _LOG_LEVEL,
    }
    folders = {name: f"{base}/input/data/{name}" for name in channels}
    framework = {name: value for name, value in given.items() if name.startswith("sagemaker_")}
    training_env = {
        **node,
        "additional_framework_parameters": framework,
        "channel_input_dirs": folders,
        "distribution_hosts": group_hosts,
        "hyperparameters": hps,
        "is_master": context.node_rank == 0,
        "job_name": context.job_name,
        "master_hostname": hosts[0],
    }
    variables = node | {
        "hps": hps,
        "framework_params": framework,
        "channels": sorted(channels),
        "training_env": training_env,
        "user_args": argv,
        "master_addr": context.master_addr,
        "master_port": context.master_port,
        "host_count": len(hosts),
        "current_host_rank": context.node_rank,
    }
    for name, folder in folders.items():
        variables[f"channel_{name}"] = folder
    for name, value in hps.items():
        variables[f"hp_{name}"] = value
    for name, value in hps.items():
        variables[f"hp_{name.replace('-', '_')}"] = value  # as ModelTrainer names it

    return {f"SM_{name.upper()}": _text(value) for name, value in variables.items()}


def _channels(path: Path) -> dict[str, Any]:
    """Read inputdataconfig.json without our own channels; empty without the file."""
    if not os.path.lexists(path):
        return {}

    document = read_object(path, "SageMaker's list of channels")
    return {name: item for name, item in document.items() if not name.startswith(OWN_CHANNELS)}


def _decoded(value: Any) -> Any:
    """Return a hyperparameter's value: that of a text which is JSON, as AWS's toolkit reads it."""
    try:
        if not isinstance(value, str):
            return value

        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _text(value: Any) -> str:
    if value is None:
        return ""

    if isinstance(value, str):
        return value

    return json.dumps(value, sort_keys=True, separators=(",", ":"))
