"""The sbatch script of a job. It holds no value of a secret."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from shlex import join, quote
from typing import Any
from urllib.parse import urlencode

from cloudtrain.providers import plugin
from cloudtrain.providers.slurm.container import apptainer_words, pyxis_options
from cloudtrain.providers.slurm.section import SlurmSection

FOLDERS = ("source", "output", "model", "checkpoints-0")
"""Folders of a run, made before the job."""

SIGNAL_EARLY = 60
"""Time from Slurm's warning to the grace period, in seconds: it enforces limits to the minute."""

PATIENCE = 120
"""Time from the grace period to the end of a job whose launchers ignore a stop, in seconds."""

MAYBE_SENT = "timed out|Zero Bytes|Unexpected message|Broken pipe|reset by peer"
"""Messages of sbatch after which the job may exist; its exit code is 1 as for a refusal."""

SBATCH_SECONDS = 60.0
"""Seconds after which a silent sbatch is killed, and the job may exist."""

LONGEST_SIGNAL = 65535
"""Maximum of `--signal`, in seconds."""

# A requeued job keeps its id. Ranks of a lost node may still write, so a restart gives the folder of
# checkpoints another name. bash runs a trap only while it waits. Exit code 5: stopped.
BODY = """umask 077
cd {folder} || exit 1

# One job per run, even if this script was sent twice: the first to start takes the folder.
ln -s "$SLURM_JOB_ID" owner 2>/dev/null
[ "$(readlink owner)" = "$SLURM_JOB_ID" ] || exit 0

# A controller that was killed before it saved the end of a job starts it again.
case $(cat exit 2>/dev/null) in 0 | 5) exit "$(cat exit)" ;; esac
rm -f exit stopped

attempt=${{SLURM_RESTART_COUNT:-0}}
[ "$attempt" -le {restarts} ] || {{ echo "limits.retries: no more restarts" >&2; exit 1; }}
last=$(ls -d checkpoints-* | sort -V | tail -n 1)
[ "$last" = "checkpoints-$attempt" ] || mv -T "$last" "checkpoints-$attempt" || exit 1
ln -sfn "checkpoints-$attempt" checkpoints

ADDRESSES=$(scontrol -o show node "$SLURM_JOB_NODELIST" \\
  | sed -n 's/.* NodeAddr=\\([^ ]*\\) .*/\\1/p' | xargs)
[ "$(wc -w <<< "$ADDRESSES")" = {nodes} ] || {{ echo "no addresses of the nodes" >&2; exit 1; }}
export ADDRESSES attempt

node() {{
  trap : TERM  # the launcher saves, and bash waits for it
  cd {source} || {{ echo "slurm.folder must be on a file system of all nodes" >&2; exit 1; }}
{exports}
  export CLOUDTRAIN_CHECKPOINT_DIR={folder}/checkpoints-$attempt
  export CLOUDTRAIN_MASTER_ADDR=${{ADDRESSES%% *}}
  export CLOUDTRAIN_MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
  export CLOUDTRAIN_NODE_RANK=$SLURM_NODEID
  CLOUDTRAIN_NODE_ADDR=$(cut -d ' ' -f $((SLURM_NODEID + 1)) <<< "$ADDRESSES")
  export CLOUDTRAIN_NODE_ADDR
  {launcher}
  code=$?
  [ $code = 5 ] || exit $code
  touch {folder}/stopped
}}
export -f node

late() {{
  echo time > stop.part && mv -n stop.part stop
}}

before=$(cat used 2>/dev/null || echo 0)
count() {{
  used=$((before + SECONDS))
  echo $used > used.part && mv used.part used
}}

# Seconds of all attempts; their limit; the end of a job whose launchers do not answer a stop.
watch() {{
  asked=
  while kill -0 "$1" 2>/dev/null; do
    count
    [ $used -lt {limit} ] || [ -e stop ] || late
    [ ! -e stop ] || asked=${{asked:-$SECONDS}}
    [ -z "$asked" ] || [ $((SECONDS - asked)) -lt {patience} ] || scancel "$SLURM_JOB_ID"
    sleep 5
  done
}}

trap 'signalled=1; late' USR1
srun {options} bash -c node &
step=$!
watch $step &
watcher=$!
while signalled=; wait $step; code=$?; [ "$signalled" ]; do :; done
kill $watcher 2>/dev/null
count

[ $code != 0 ] || [ ! -e stopped ] || code=5
{requeue}rm -f secrets
echo $code > exit.part && mv exit.part exit
exit $code
"""

SAME_NAMES = ("account", "constraint", "exclusive", "reservation")
"""Fields of the section whose options have the same names."""

REQUEUE = """# Stopped, and nobody asked: Slurm is about to take the nodes for another job.
[ $code != 5 ] || [ -e stop ] || { scontrol requeue "$SLURM_JOB_ID" && sleep 600; }
"""
"""Part of a script that Slurm may start again."""

NO_LIMIT = 10**9
"""Seconds of a job without a limit, and restarts of a spot job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmConfig(plugin.ProviderConfig):
    """Decisions of a plan."""

    folder: str


def request_document(plan: plugin.Plan) -> dict[str, Any]:
    """Return the folder of the run, the script, and the shell command that stores the secrets."""
    folder = f"{plan.target.config_as(SlurmConfig).folder}/{plan.run_id}"
    document = {"folder": folder, "script": _script(plan, folder)}
    if plan.secrets:
        document["secrets"] = _secrets_command(plan, folder)
    return document


def sbatch(argv: list[str], script: bytes = b"") -> None:
    """Run sbatch. Its answer leaves open whether there is a job if `MAYBE_SENT` is in it."""
    # SBATCH_… of the environment would win over the lines of the script.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SBATCH_")}
    plugin.program_output(argv, script, env=env, seconds=SBATCH_SECONDS, unknown_text=MAYBE_SENT)


def start_commands(document: Mapping[str, Any]) -> list[list[str]]:
    """Return the commands that start the job of a request, in a folder with its files."""
    folder = document["folder"]
    commands = [
        ["mkdir", "-p", "-m", "700", folder, *(f"{folder}/{name}" for name in FOLDERS)],
        ["tar", "xzf", "source.tar.gz", "-C", f"{folder}/source"],
        ["cp", "job.json", "job.sbatch", folder],
    ]
    if "secrets" in document:
        commands.append(["bash", "-c", document["secrets"]])
    return [*commands, ["sbatch", "--parsable", f"{folder}/job.sbatch"]]


def is_requeued(plan: plugin.Plan) -> bool:
    """Return whether Slurm starts the job again after a preemption or a failure of a node."""
    return plan.spec.resources.spot or plan.spec.limits.retries > 0


def time_limit(plan: plugin.Plan) -> int | None:
    """Return the seconds after which the job is stopped; None without a limit."""
    if plan.target.cost_estimate is not None:
        return plan.target.cost_estimate.max_seconds

    return plan.spec.limits.max_runtime


def slurm_minutes(plan: plugin.Plan) -> int | None:
    """Return `--time`. The launcher ends the job at its limit; Slurm's own comes after it."""
    limit = time_limit(plan)
    if not limit:
        return None

    return -(-(limit + int(plan.target.grace_seconds) + SIGNAL_EARLY) // 60) + 1


def partition_of(spec: plugin.JobSpec) -> str | None:
    """Return the partition of the job; None for the cluster's default."""
    section = spec.section(SlurmSection)
    return (spec.resources.spot and section.spot_partition) or section.partition


def _script(plan: plugin.Plan, folder: str) -> str:
    nodes = plan.spec.resources.nodes
    layout = _layout(plan, folder)
    (launch, *_) = plugin.launches(
        plan, layout, addresses=("",) * nodes, interface="", threads=_threads(plan)
    )
    exports = [f"  export {name}={quote(value)}" for name, value in launch.env.items()]
    if launch.secrets:
        exports.append(f"  . {quote(f'{folder}/secrets')} || exit 1")

    body = BODY.format(
        folder=quote(folder),
        source=quote(layout.source),
        nodes=nodes,
        restarts=NO_LIMIT if plan.spec.resources.spot else plan.spec.limits.retries,
        exports="\n".join(exports),
        launcher=join(chain(apptainer_words(plan, layout), launch.argv)),
        limit=time_limit(plan) or NO_LIMIT,
        patience=plan.target.grace_seconds + PATIENCE,
        requeue=REQUEUE if is_requeued(plan) else "",
        options=" ".join(_srun_options(plan, layout, folder)),
    )
    return "\n".join(["#!/bin/bash", *_sbatch_lines(plan, folder), body])


def input_path(plan: plugin.Plan, location: str) -> str:
    """Return the absolute path of an input; a relative one begins in the folder of the job."""
    path = Path(location.removeprefix("file://")).expanduser()
    return os.path.normpath(Path(plan.context.folder) / path)


def _layout(plan: plugin.Plan, folder: str) -> plugin.Layout:
    venv = plugin.select_image(plan.spec.image, "slurm").text
    python = f"{venv}/bin/python3"
    if venv == "auto" or plan.spec.section(SlurmSection).container:
        python = "python3"

    inputs = {name: input_path(plan, place) for name, place in plan.inputs.items()}
    return plugin.Layout(
        python=python,
        job_file=f"{folder}/job.json",
        stop_file=f"{folder}/stop",
        inputs=inputs,
        source=f"{folder}/source",
        output=f"{folder}/output",
        model=f"{folder}/model",
        checkpoints=f"{folder}/checkpoints",
        resume=plan.context.resume_from,
    )


def _secrets_command(plan: plugin.Plan, folder: str) -> str:
    """Return a command of bash that writes the values into a file which only this user reads."""
    lines = []
    for name, place in plan.secrets.items():
        store, _, source = place.partition(":")
        value = f'"${{{source}?is not set}}"' if store == "env" else f'"$(cat {quote(source)})"'
        lines.append(f"value={value} && printf 'export {name}=%q\\n' \"$value\"")

    return f"umask 077; {{ {' && '.join(lines)}; }} > {quote(f'{folder}/secrets')}"


def _sbatch_lines(plan: plugin.Plan, folder: str) -> list[str]:
    section = plan.spec.section(SlurmSection)
    limits = plan.spec.limits
    grace = int(plan.target.grace_seconds)
    options = {
        **section.request,  # the last line wins, whatever sbatch takes for an abbreviation of ours
        "job-name": plan.run_id,
        "comment": urlencode(plugin.tags(plan, "")),
        "nodes": plan.spec.resources.nodes,
        "ntasks-per-node": 1,
        **_node_options(plan),
        "partition": partition_of(plan.spec),
        "qos": (plan.spec.resources.spot and section.spot_qos) or section.qos,
        **{name: getattr(section, name) for name in SAME_NAMES},
        "time": slurm_minutes(plan),
        "deadline": f"now+{limits.max_wait}seconds" if limits.max_wait else None,
        "signal": f"B:USR1@{min(grace + SIGNAL_EARLY, LONGEST_SIGNAL)}",
        "requeue": is_requeued(plan),
        "no-requeue": not is_requeued(plan),
        "export": "HOME,PATH,USER,LANG",
        "open-mode": "append",
        "chdir": folder,
        "output": f"{folder}/batch.log",
    }
    return [f"#SBATCH {option}" for option in _written(options, '"{}"'.format)]


def _node_options(plan: plugin.Plan) -> dict[str, Any]:
    """Return what a job asks of a node, which its step does not inherit in each version."""
    section = plan.spec.section(SlurmSection)
    return {
        "gpus-per-node": None if section.gres else plan.gpus or None,
        "gres": section.gres,
        "cpus-per-task": section.cpus or plan.processes,
        "mem": section.memory,
    }


def _srun_options(plan: plugin.Plan, layout: plugin.Layout, folder: str) -> list[str]:
    """Return the options of the step, which ends if a launcher fails."""
    options = {
        "export": "ALL",
        "kill-on-bad-exit": 1,
        "wait": 0,
        "open-mode": "append",
        **_node_options(plan),
        **pyxis_options(plan, layout),
    }
    return [*_written(options, quote), f"--output={quote(f'{folder}/node-%n.log')}"]


def _written(options: dict[str, Any], quoted: Callable[[str], str]) -> list[str]:
    words = []
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words.append(f"--{name}={quoted(str(value))}")
    return words


def _threads(plan: plugin.Plan) -> int | None:
    cpus = plan.spec.section(SlurmSection).cpus
    return max(1, cpus // plan.processes) if cpus else None
