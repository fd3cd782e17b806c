"""Writes the pages of docs/reference/ from the code: `python docs/make/make_reference.py`. A test
tells their age.

Each function in `PAGES` is one page; a new one also needs its line in docs/README.md and in
mkdocs.yml. What the code does not say (what a variable is for) is in the tables here, and a name
that a table lacks or has too many is an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from cloudtrain import errors, settings
from cloudtrain.declaration import Setting
from cloudtrain.units import format_duration
from cloudtrain_wire.sizes import format_size
from reference_commands import commands, job_yaml
from reference_events import events_page
from reference_failures import failures
from reference_infra import infra_page
from reference_page import first, page, table
from reference_python import python

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"

JOB_VARIABLES = {
    "CLOUDTRAIN_RUN_ID": "the run's id",
    "CLOUDTRAIN_JOB_NAME": "the job's name",
    "CLOUDTRAIN_PLATFORM": "`plain`, `sagemaker` or `azureml`: whose contract the job runs under",
    "CLOUDTRAIN_NODE_RANK": "this node's rank, from 0",
    "CLOUDTRAIN_NODES": "how many nodes there are",
    "CLOUDTRAIN_PROCESSES": "processes per node",
    "CLOUDTRAIN_INPUT_TRAIN": (
        "folder or file of the input `train`; one variable for each input, its name in capitals"
    ),
    "CLOUDTRAIN_OUTPUT_DIR": "folder for results; `fetch` downloads it",
    "CLOUDTRAIN_MODEL_DIR": "the same, for the trained model",
    "CLOUDTRAIN_CHECKPOINT_DIR": "the same, for checkpoints; they return after a restart",
    "CLOUDTRAIN_TENSORBOARD_DIR": "where to write TensorBoard's files, in the output folder",
    "CLOUDTRAIN_CHECKPOINT_EVERY": "seconds between two checkpoints, as the job asks",
    "CLOUDTRAIN_CHECKPOINT_KEEP": "how many checkpoints to keep, as the job asks",
    "CLOUDTRAIN_ARGS_FILE": "the arguments as a JSON file, their types kept",
    "CLOUDTRAIN_JOB_FILE": "the job document of the launcher, as JSON",
    "PET_NNODES": (
        "the number of nodes; with these five, `torchrun train.py` by hand joins the right group"
    ),
    "PET_NODE_RANK": "this node's rank",
    "PET_NPROC_PER_NODE": "processes per node",
    "PET_MASTER_ADDR": "where the processes meet",
    "PET_MASTER_PORT": "its port",
    "GLOO_SOCKET_IFNAME": (
        "the network interface between the nodes, unless the job's `env` names one"
    ),
    "NCCL_SOCKET_IFNAME": "the same for NCCL",
    "OMP_NUM_THREADS": (
        "the node's cores divided by its processes, unless the job's `env` sets it"
    ),
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": (
        "1: after a restart, ranks never read the addresses of dead ones"
    ),
    "PYTHONPATH": "has the folder of `cloudtrain_job` at its end",
}
"""Variables of a job's process, beside those set by its platform and torchrun."""

GPU_VARIABLES = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": (
        "1, on GPUs: when an NCCL collective times out, the last collectives of each rank are "
        "saved, unless the job's `env` sets 0"
    ),
    "TORCH_FR_DUMP_TEMP_FILE": (
        "where: `flight-recorder/rank_` in the output, unless the job's `env` sets it; before "
        "torch 2.13 `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`"
    ),
    "TORCH_FR_BUFFER_SIZE": (
        "how many of them, 2000; before torch 2.13 `TORCH_NCCL_TRACE_BUFFER_SIZE`"
    ),
    "TORCH_NCCL_HIGH_PRIORITY": (
        "1, in the trainer: messages precede computation, unless the job's `env` sets 0"
    ),
}
"""More variables of GPU jobs, set by `flight_recorder` and the trainer's `nccl`."""

INTERNAL = {
    "CLOUDTRAIN_RESULT_FILE",
    "CLOUDTRAIN_STREAM_DIR",
    "CLOUDTRAIN_LAUNCHER_PID",
    "CLOUDTRAIN_STREAM_KEY",
}
"""Variables for the launcher itself, left out of the reference."""

CLIENT_VARIABLES = {
    "NO_COLOR": "no colours",
    "XDG_DATA_HOME": (
        "runs are kept in its folder `cloudtrain`, instead of `~/.local/share/cloudtrain`"
    ),
    "XDG_CONFIG_HOME": (
        "your settings are `cloudtrain/config.toml` there, instead of in `~/.config`"
    ),
    "CUDA_VISIBLE_DEVICES": "the GPUs that runs on this machine may use",
    "DOCKER": "another program than `docker` to build images with",
    "DOCKER_HOST": "the engine, as the docker program understands it; it must be this machine's",
    "DOCKER_CONTEXT": "the same, by a context's name",
}

EXIT_CODES = {
    0: "success; for a command that waits for a job: the job succeeded",
    1: "the job failed",
    2: "bad usage or bad spec, before a start",
    3: "refused by a check, before a start or a cost",
    4: "trouble with a cloud, the network or the disk",
    5: "the job was stopped or ran out of time; `stop` itself exits with 0",
    130: "interrupted with Ctrl-C; a followed job continues",
}
JOB_CODES = {
    12: "the trainer: out of memory; the next start uses micro-batches of half the size",
    33: "the trainer: a loss, gradient or weight is NaN or infinite",
}
"""Codes of processes inside a job, as logs and failures show them."""


def settings_page() -> str:
    """Return the page of settings, with key, variable and meaning."""
    rows = [
        (
            f"`{key}`",
            f"`{settings.variable_of(key)}`",
            setting.meaning,
            _shown(key, setting),
            _BESIDE_JOB[setting.beside_job],
        )
        for key, setting in settings.known_settings(third_parties=False).items()
    ]
    text = (
        "A flag wins over the environment, that over `cloudtrain.toml` beside the job, that over"
        " `~/.config/cloudtrain/config.toml`. In a file, `aws.region` is `region` in the table"
        " `[aws]`, and a relative path counts from the file.\n\n"
        "The folder of a job may be somebody else's. The last column says which keys its"
        " `cloudtrain.toml` may set: *asked* ones redirect the job, and `submit` shows them and, on a"
        " terminal, asks once per folder; *no* means that the line is not used, with a warning."
        " `policy` can only be made strict there.\n\n"
        "The data folder must be yours: one that belongs to another user, or that its group or"
        " everybody may write, is refused, since programs are run from there.\n\n"
    )
    head = ("key", "variable", "meaning", "default", "beside the job")
    limits = []
    for key, setting in settings.ORGANIZATION.items():
        limits.append((f"`{key.partition('.')[2]}`", setting.meaning))

    text += table(head, rows) + _DEFAULTS + table(("limit", "meaning"), limits) + _ENFORCED
    return page("Settings", text)


_DEFAULTS = f"""
## Default fields of job.yaml

The table `[defaults]` has fields of [job.yaml](job-yaml.md), of every kind:

```toml
[defaults]
limits.max_runtime = "6 h"
tags = {{project = "vision"}}
```

A job.yaml wins over what it [extends](job-yaml.md#extends), that over `[defaults]` of `cloudtrain.toml` beside
the job, and that over `[defaults]` of your own file. Mappings are merged key by key, and all else is replaced
as a whole. Messages show the line of each value. The folder's table is not taken, with a warning, if its file
belongs to another user; for a cloud it is *asked*, as the account's settings are. A run keeps the fields that
it was planned with: a rerun does not read them anew.

## A message when a run has ended

The table `[notify]` of your own file names who is told of the end of each run and of each sweep that you start, but not
of a sweep's trials:

```toml
[notify]
command = "notify-send cloudtrain"   # gets a sentence as its last argument, and JSON on its input
slack = "env:SLACK_URL"              # a webhook in Slack's form
webhook = "env:HOOK_URL"             # a webhook that gets the JSON
```

The message has the name, verdict, cost and link of the run, and no traceback. The first command on this machine
that sees the end sends it in the background: `submit`, `attach` and `wait` at once, `list` and `status` later;
for a detached job let `cloudtrain wait RUN` run. A receiver that does not answer delays nothing, and is tried
again by the next of these commands, so that a message may come twice. A sweep's driver tells its end, and
`status SWEEP` tries again. `status` and `doctor` show a receiver that did not take a message, and its answer.

## Limits of the organization

`{settings.ORGANIZATION_FILE}` has the table `[organization]`, for everybody on this machine. Root must own the
file and its folder, and nobody else may write them: otherwise every command that reads settings refuses. No
other file, variable or flag sets a limit. `*` stands for any text. A job beyond a limit is refused by `check`,
`plan` and `submit`, at the line of the limit.

"""

_ENFORCED = """
A cost is that of one job, by the higher of your own price and the price of the tables; each trial of a sweep
counts alone. A rehearsal and a job on this machine rent nothing: only `providers` counts for them.

These are guards against mistakes, not walls: who submits by another program, or from another machine, never
meets them.

| limit | what the cloud enforces |
| --- | --- |
| `max_runtime` | AWS, by `MaxRuntimeSeconds` of the [template](infra.md); Azure: nobody |
| `machines` | AWS, by `InstanceTypes` of the template; Azure: for clusters a policy (see below) |
| `tags` | AWS, by `RequiredTags` of the template; Azure: nobody |
| `regions`, `providers` | nobody, except policies of your own, such as an SCP of AWS or "Allowed locations" of Azure |
| `max_cost` | nobody: `MonthlyBudget` and `budget` of the templates send mails, and stop nothing |

Azure Policy knows the size of a cluster as `Microsoft.MachineLearningServices/workspaces/computes/vmSize`. Such
a policy belongs to the subscription, so that the template, which belongs to a resource group, has none. Nobody
limits the machines of serverless jobs.
"""


_BESIDE_JOB = {"harmless": "yes", "confirmed": "asked", "never": "no"}


def _shown(key: str, setting: Setting) -> str:
    value = setting.default
    if value is None:
        return {
            "data_dir": "`~/.local/share/cloudtrain`",
            "python": "the Python of cloudtrain",
        }.get(key, "")
    if setting.kind == "size":
        return format_size(value)
    return format_duration(value) if setting.kind in ("grace", "seconds") else f"`{value}`"


def environment() -> str:
    """Return the page of variables: of a job, as the launcher sets them, and of the client."""
    unknown = _job_variables() ^ set(JOB_VARIABLES)
    if unknown:
        raise LookupError(
            f"variables of a job without a meaning here, or that are gone: {sorted(unknown)}"
        )
    torchrun = {
        "RANK, WORLD_SIZE": "this process among all, from 0; how many there are",
        "LOCAL_RANK, LOCAL_WORLD_SIZE": "the same within this node",
        "MASTER_ADDR, MASTER_PORT": "where the processes meet",
    }
    command = {
        "WORLD_SIZE": "how many nodes there are",
        "MASTER_ADDR, MASTER_PORT": "the first node, and a port that was free there",
        "NODE_RANK": "this node's rank, from 0",
        "CLOUDTRAIN_HOSTS": "the hosts of all nodes by rank, separated by commas",
        "TF_CONFIG": "with `launch.tf_config`: the nodes as TensorFlow's workers, and this one's index",
        "RANK, LOCAL_RANK, LOCAL_WORLD_SIZE": "with `launch.rank_variables`: of the only rank of its node",
    }
    parts = [
        "## In a job\n",
        (
            "Every process has these variables, beside the platform's own, the job's `env`"
            " and its secrets. On SageMaker and in rehearsals as aws these are also the `SM_*` variables of AWS's"
            " [training toolkit](https://github.com/aws/sagemaker-training-toolkit).\n"
        ),
        _variables(JOB_VARIABLES),
        "On machines with GPUs also these, the first three under torchrun alone:\n",
        _variables(GPU_VARIABLES),
        "From `torchrun`, or from the launcher for the only rank of a job without restarts:\n",
        _variables(torchrun),
        "A command of `launcher: none` has these instead:\n",
        _variables(command),
        "## On your machine\n",
        "Every [setting](settings.md) has a variable. cloudtrain also reads:\n",
        _variables(CLIENT_VARIABLES),
    ]
    return page("Environment variables", "\n".join(parts))


def _variables(meanings: Mapping[str, str]) -> str:
    rows = [
        (", ".join(f"`{part}`" for part in name.split(", ")), meaning)
        for name, meaning in meanings.items()
    ]
    return table(("variable", "meaning"), rows)


def _job_variables() -> set[str]:
    """Return the variables that the launcher sets for processes of a job."""
    import tempfile

    from cloudtrain_launcher.contract import Job, NodeContext
    from cloudtrain_launcher.environment import job_environment

    job = Job("id", "name", "script", "train.py", [], {}, 1, 1, 0, 0, 30, 600, 3)
    context = NodeContext(
        "plain",
        0,
        1,
        "node",
        1,
        "node",
        "eth0",
        "output",
        "model",
        "checkpoints",
        {"train": "x"},
        "",
        "",
    )
    with tempfile.TemporaryDirectory() as folder:
        return set(job_environment(job, context, Path(folder), {})) - INTERNAL


def commands_page() -> str:
    """Return the page of commands, and of exit codes with the errors of each."""
    kinds = {
        code: [kind.__name__ for kind in _errors() if kind.exit_code == code] for code in EXIT_CODES
    }
    rows = [
        (f"{code}", meaning, ", ".join(f"[`{name}`](python.md#errors)" for name in kinds[code]))
        for code, meaning in EXIT_CODES.items()
    ]
    listed = {kind.exit_code for kind in _errors()}
    if listed - set(EXIT_CODES):
        raise LookupError(f"exit codes without a meaning here: {sorted(listed - set(EXIT_CODES))}")
    parts = [
        commands(),
        "## Exit codes\n",
        "Of commands:\n",
        table(("code", "meaning", "errors in Python"), rows),
        "Of processes inside a job, in logs and failures:\n",
        table(("code", "meaning"), [(str(code), meaning) for code, meaning in JOB_CODES.items()]),
    ]
    return page("Commands", "\n".join(parts))


def python_page() -> str:
    """Return the page of the Python API, and of exceptions with meaning and exit code."""
    rows = [
        (f"`{kind.__name__}`", f"`{kind.__bases__[0].__name__}`", str(kind.exit_code), first(kind))
        for kind in _errors()
    ]
    text = (
        "Every failure is an exception in Python, and a message and an exit code on the command"
        " line. A message says what is wrong, where (file, line and column of a spec), and why; its"
        " `hint` says what to do. With `--json` the same is one JSON object. Anything else that"
        " ends in a traceback is a bug: please report it.\n"
    )
    parts = [python(), "## Errors\n", text]
    parts.append(table(("error", "is a", "exit code", "meaning"), rows))
    return page("Python API", "\n".join(parts))


def _errors() -> list[type[errors.CloudtrainError]]:
    kinds = dict.fromkeys(kind for kind in vars(errors).values() if isinstance(kind, type))
    return [kind for kind in kinds if issubclass(kind, errors.CloudtrainError)]


def trainer_options() -> str:
    """Return the page of `train.py --help`, without its summary.

    Versions of Python wrap the summary differently.
    """
    argv = [sys.executable, str(ROOT / "entrypoints" / "train.py"), "--help"]
    env = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1"}
    completed = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    text = (
        "In `job.yaml`, `args: {epochs: 3}` is `--epochs 3`. See [the"
        " trainer](../guides/trainer.md).\n\n"
    )
    options = completed.stdout.partition("\n\n")[2].rstrip()
    return page("The trainer's options", f"{text}```text\n{options}\n```\n")


PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "job-yaml.md": job_yaml,
    "settings.md": settings_page,
    "environment.md": environment,
    "failures.md": failures,
    "events.md": events_page,
    "infra.md": infra_page,
    "python.md": python_page,
    "trainer-options.md": trainer_options,
}


if __name__ == "__main__":
    sys.path += [str(ROOT / "entrypoints"), str(ROOT / "entrypoints" / "job")]
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
