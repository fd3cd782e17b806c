"""A provider in one file: jobs run on a Linux machine that `ssh` reaches, and go on when the
connection ends.
"""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import IO, Any

from cloudtrain.providers import plugin

SSH = ("ssh", "-o", "BatchMode=yes", "--")  # after `--` no host is taken for an option
# Who has the lock runs the job. `started` says that it has begun: a second start, even after its
# end, does nothing.
START = """mkdir -p source; exec 9>lock; flock -n 9 && [ ! -e started ] || exit 0
head -c {} > run.sh && tar xz -C source && touch started || exit 1; nohup sh run.sh >log 2>&1 </dev/null &"""
LOOK = (
    "[ -e started ] || exec echo absent; flock -n lock true || exec echo running; echo exit code"
    " $(cat exit)"
)


class SshSection(plugin.Section):
    """The section `ssh` of job.yaml."""

    host: str | None = plugin.Field(None, description="the machine, as ssh takes it: me@gpu-box")
    folder: str = plugin.Field(
        "/var/tmp/cloudtrain", pattern="^/", description="where it keeps runs"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SshConfig(plugin.ProviderConfig):
    """What a plan decides, and what every later look at its run goes by."""

    host: str
    folder: str


class Ssh(plugin.BatchProvider):
    """One machine, under the plain contract."""

    declaration = plugin.Declaration(
        name="ssh",
        label="SSH",
        input_schemes=("ssh",),
        input_example="ssh:///data/digits",
        secret_stores={"file": "PATH"},
        settings={
            "host": plugin.Setting("the machine, unless job.yaml names one", default="localhost")
        },
        section=lambda: SshSection,
    )

    def target(
        self, settings: plugin.Settings, spec: plugin.JobSpec, *, rehearsal: bool = False
    ) -> plugin.Target:
        section = spec.section(SshSection)
        host = section.host or settings["ssh.host"]
        return plugin.Target(
            provider="ssh",
            where=host,
            grace_seconds=settings["stop_grace"],
            unused=plugin.CLOUD_FIELDS,
            config=SshConfig(host=host, folder=section.folder),
        )

    def checks(self, plan: plugin.Plan, *, starting: bool) -> list[plugin.Issue]:
        host = plan.target.config_as(SshConfig).host
        paths = {
            f"inputs.{name}": path.removeprefix("ssh://") for name, path in plan.inputs.items()
        }
        paths |= {
            f"secrets.{name}": path.removeprefix("file:") for name, path in plan.secrets.items()
        }
        tests = [f"test -r {quote(path)} || echo {name};" for name, path in paths.items()]
        missing = (
            plugin.program_output([*SSH, host, " ".join(tests)]).decode().split()
            if starting and tests
            else []
        )
        return [
            plan.located(plugin.Issue(tuple(at.split(".")), f"{host} has no {paths[at]}"))
            for at in missing
        ]

    def render(
        self, plan: plugin.Plan, image: plugin.ResolvedImage | None = None
    ) -> plugin.Request:
        config = plan.target.config_as(SshConfig)
        venv = plugin.select_image(plan.spec.image, "ssh").text
        script = plugin.shell_script(
            plan,
            f"{config.folder}/{plan.run_id}",
            python="python3" if venv == "auto" else f"{venv}/bin/python3",
            inputs={name: path.removeprefix("ssh://") for name, path in plan.inputs.items()},
            secrets={
                name: f"cat {quote(path.removeprefix('file:'))}"
                for name, path in plan.secrets.items()
            },
        )
        job = plugin.plain_job(plan, keeps_time=True)
        return plugin.Request(
            provider="ssh", document={"host": config.host, "script": script}, job=job
        )

    def submit_job(self, run: plugin.RunFolder, request: plugin.Request, archive: Path) -> None:
        script = request.document["script"].encode()
        self.ask(run, START.format(len(script)), script + archive.read_bytes())

    def job_status(self, run: plugin.RunFolder) -> plugin.JobStatus | None:
        word = self.ask(run, LOOK).decode().strip()
        return (
            None if word == "absent" else plugin.JobStatus(phase=word, has_ended=word != "running")
        )

    def read_log(self, run: plugin.RunFolder, node: int, offset: int) -> bytes:
        return self.ask(run, f"tail -c +{offset + 1} log | head -c 4000000")

    def stop_job(self, run: plugin.RunFolder) -> None:
        self.ask(run, "touch stop")

    def job_folder(self, run: plugin.RunFolder) -> str:
        return f"{plugin.RunRecord(run).config(SshConfig).folder}/{run.run_id}"

    def download(self, run: plugin.RunFolder, name: str, file: IO[bytes]) -> None:
        self.ask(run, f"[ ! -d {name} ] || tar cz -C {name} .", out=file)

    def ask(self, run: plugin.RunFolder, command: str, data: bytes = b"", **more: Any) -> bytes:
        host = plugin.RunRecord(run).config(SshConfig).host
        folder = quote(self.job_folder(run))
        argv = [*SSH, host, f"umask 077; mkdir -p {folder} && cd {folder} || exit 1; {command}"]
        # 255: the connection has failed.
        return plugin.program_output(argv, data, unknown=(255,), **more)
