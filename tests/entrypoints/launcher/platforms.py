"""A job's platforms on this machine: SageMaker's container, Azure ML's nodes and a Key Vault."""

from __future__ import annotations

import io
import json
import shutil
import ssl
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain_wire.ports import free_port
from tests.entrypoints.launchers import ENTRYPOINTS, Launcher, clean, document, start_launcher
from tests.fakes import messages
from tests.fakes.azure import tokens
from tests.fakes.messages import Response
from tests.fakes.plain_server import serve


def resources(
    here: str = "algo-1", hosts: tuple[str, ...] = ("algo-1",), **changes: Any
) -> dict[str, Any]:
    """resourceconfig.json as the service writes it."""
    group = {
        "instance_group_name": "homogeneousCluster",
        "instance_type": "ml.c5.large",
        "hosts": list(hosts),
    }
    return {
        "current_host": here,
        "current_instance_type": "ml.c5.large",
        "current_group_name": "homogeneousCluster",
        "hosts": list(hosts),
        "instance_groups": [group],
        "network_interface_name": "lo",
    } | changes


def container(base: Path, job: dict[str, Any] | None = None, **nodes: Any) -> dict[str, str]:
    """Fill the folder `base`; returns the variables of a rehearsal on this machine."""
    for folder in (
        "input/config",
        "input/data/cloudtrain-job",
        "model",
        "output/data",
        "checkpoints",
        "code",
    ):
        (base / folder).mkdir(parents=True, exist_ok=True)

    (base / "input/config/resourceconfig.json").write_text(json.dumps(resources(**nodes)))
    (base / "input/config/hyperparameters.json").write_text("{}")
    (base / "input/data/cloudtrain-job/job.json").write_text(json.dumps(document(**(job or {}))))
    return {
        "SAGEMAKER_BASE_DIR": str(base),
        "CLOUDTRAIN_PLATFORM": "sagemaker",
        "CLOUDTRAIN_MASTER_ADDR": "127.0.0.1",
        "CLOUDTRAIN_MASTER_PORT": str(free_port()),
        "CLOUDTRAIN_NODE_ADDR": "127.0.0.1",
        "TRAINING_JOB_NAME": "job-1",
        "TRAINING_JOB_ARN": "arn:aws:sagemaker:eu-west-1:123456789012:training-job/job-1",
    }


def put_source(base: Path, **files: str) -> None:
    """Fill the source channel with these files and the launcher."""
    channel = base / "input/data/cloudtrain-source"
    channel.mkdir(parents=True, exist_ok=True)
    with tarfile.open(channel / "source.tar.gz", "w:gz") as tar:
        for path in sorted(ENTRYPOINTS.rglob("*.py")):
            tar.add(path, f".cloudtrain/{path.relative_to(ENTRYPOINTS).as_posix()}")

        for name, text in files.items():
            member = tarfile.TarInfo(f"{name}.py")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))


MASTER = "127.0.0.101"


def variables(rank: int = 0, nodes: int = 1, port: int = 6105, **changes: str) -> dict[str, str]:
    """Return Azure ML's variables for a PyTorch distribution with one process per node, and those
    of the request.
    """
    return {
        "AZUREML_RUN_ID": "job-1",
        "MASTER_ADDR": MASTER,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(nodes),
        "NODE_RANK": str(rank),
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "CLOUDTRAIN_PLATFORM": "azureml",
        "CLOUDTRAIN_JOB": json.dumps(document()),
        "CLOUDTRAIN_SCHEDULED_EVENTS": "off",
    } | changes


def folders(base: Path) -> dict[str, str]:
    """Return the variables that the command exports: the mounts, shared by all nodes."""
    mounts = {
        "CLOUDTRAIN_OUTPUT_DIR": "output",
        "CLOUDTRAIN_MODEL_DIR": "model",
        "CLOUDTRAIN_CHECKPOINT_DIR": "checkpoints",
        "CLOUDTRAIN_INPUT_TRAIN": "in a mount/train",
        "CLOUDTRAIN_RESUME_DIR": "earlier",
    }
    for path in mounts.values():
        (base / path).mkdir(parents=True, exist_ok=True)

    return {name: str(base / path) for name, path in mounts.items()}


def start_node(
    base: Path,
    rank: int,
    nodes: int,
    port: int,
    programs: dict[str, str],
    job: dict[str, Any],
    *,
    new_process: bool = False,
    **environ: str,
) -> Launcher:
    """Start one node in its own folder: as a fork, or as the service does, by a shell that the
    launcher replaces.
    """
    code = base / f"wd-{rank}" / f"node-{rank}"  # every node has its own disk
    shutil.copytree(
        ENTRYPOINTS,
        code / ".cloudtrain",
        ignore=shutil.ignore_patterns("__pycache__"),
        dirs_exist_ok=True,
    )
    for name, text in programs.items():
        (code / f"{name}.py").write_text(text)

    exports = " ".join(f'{name}="{path}"' for name, path in folders(base).items())
    env = clean() | variables(rank, nodes, port, CLOUDTRAIN_JOB=json.dumps(document(**job)))
    env |= {"CLOUDTRAIN_NODE_ADDR": f"127.0.0.{101 + rank}"} | environ
    if not new_process:
        return start_launcher(code / ".cloudtrain", code, env | folders(base))

    command = ["sh", "-c", f'export {exports} && exec "{sys.executable}" -u .cloudtrain']
    return start_launcher(code / ".cloudtrain", code, env, command)


TOKEN = "token-that-nobody-may-print"
MSI_SECRET = "msi-secret-that-nobody-may-print"
SECRET = "value-that-nobody-may-print"


def refusal(code: str, inner: str = "") -> dict[str, Any]:
    """An error as Key Vault writes it; its message contains what ours must not."""
    return {
        "error": {
            "code": code,
            "message": SECRET,
            **({"innererror": {"code": inner}} if inner else {}),
        }
    }


class Request(NamedTuple):
    """A request that was recorded."""

    scheme: str
    path: str
    """With its query."""
    headers: dict[str, str]
    """By name in lower case."""
    body: Any
    """Parsed JSON; None without a body."""


@dataclass
class Answers:
    """Answers of a JSON server by path, and the requests that it has received."""

    default: tuple[int, Any] = (200, {})
    answers: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    """Path -> status and body of one request after another; the last one is repeated."""
    requests: list[Request] = field(default_factory=list)

    def asked(self, scheme: str) -> list[str]:
        """Return the paths and queries that were requested, in their order."""
        return [request.path for request in self.requests if request.scheme == scheme]


@dataclass
class Vault(Answers):
    """A Key Vault and a node's identity endpoint."""

    default: tuple[int, Any] = (404, refusal("SecretNotFound"))
    host: str = ""
    identity: str = ""
    certificate: Path = Path()

    def environ(self, **more: str) -> dict[str, str]:
        """The variables of a job with a managed identity."""
        return {
            "MSI_ENDPOINT": self.identity,
            "MSI_SECRET": MSI_SECRET,
            "SSL_CERT_FILE": str(self.certificate),
        } | more

    def reference(self, path: str) -> str:
        """The reference to a secret of this vault."""
        return f"keyvault:https://{self.host}/secrets/{path}"


@contextmanager
def serving(folder: Path) -> Iterator[Vault]:
    """The vault's two servers, until the end of the block."""
    public, context = tokens.make_certificate(folder)
    vault = Vault(certificate=public)
    with json_server(vault, context) as safe, json_server(vault) as plain:
        vault.host = f"localhost:{safe}"
        vault.identity = f"http://127.0.0.1:{plain}/msi"
        yield vault


@contextmanager
def json_server(served: Answers, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve these answers on a port of this machine, until the end of the block."""

    def answer(request: messages.Request) -> Response:
        scheme = "https" if context else "http"
        body = json.loads(request.body) if request.body else None
        served.requests.append(Request(scheme, request.target, dict(request.headers), body))
        answers = served.answers.get(request.target.partition("?")[0]) or [served.default]
        status, value = answers.pop(0) if len(answers) > 1 else answers[0]
        headers = [("Location", "/stolen")] if 300 <= status < 400 else []
        return Response(
            status, headers, (value if isinstance(value, str) else json.dumps(value)).encode()
        )

    with serve(answer, context) as port:
        yield port
