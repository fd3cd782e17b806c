"""Installs a job's packages for a check on this machine, as the launcher does for a run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cloudtrain.bundle import bundled
from cloudtrain.contracts.launch import PACKAGES_DIR, dependencies_document
from cloudtrain.planning.plan import Plan
from cloudtrain.submission.package_checks import requested_of


class PackagesMissing(RuntimeError):
    """The job's packages cannot be installed on this machine."""


@contextmanager
def python_with_packages(python: str, plan: Plan) -> Iterator[str]:
    """Yield a Python that has the job's packages over those of `python`. Raise PackagesMissing.

    They are kept where runs on this machine keep theirs. A job that installs its own source gets
    nothing: that would build inside the source folder.
    """
    document = dependencies_document(plan)
    if not document or requested_of(plan).is_local:
        yield python
        return
    with TemporaryDirectory(prefix="cloudtrain-") as scratch:
        result = _install(python, plan, document, Path(scratch))
        if "error" in result:
            raise PackagesMissing(". ".join(filter(None, (result["error"], result.get("hint")))))
        yield f"{result['environment']}/bin/python3" if result["environment"] else python


def _install(python: str, plan: Plan, document: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Run the launcher's installer; return its result."""
    task = {
        "source": str(plan.context.source.root),
        "result": str(scratch / "packages.json"),
        "folder": str(_kept_packages()),
        "node": 0,
        "file": document.get("file", ""),
        "packages": document.get("packages", []),
        "replace_torch": bool(document.get("replace_torch")),
    }
    task_file = scratch / "task.json"
    task_file.write_text(json.dumps(task), encoding="utf-8")
    installer = bundled("entrypoints") / "cloudtrain_launcher" / "packages" / "install.py"
    try:
        done = subprocess.run(
            [python, "-u", str(installer), str(task_file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, **plan.spec.env},
            check=False,
        )
        result: dict[str, Any] = json.loads(Path(task["result"]).read_text(encoding="utf-8"))
    except FileNotFoundError:
        said = done.stderr.decode("utf-8", "replace")[-300:]
        return {"error": f"the installation of packages ended with code {done.returncode}: {said}"}
    except OSError as error:
        return {"error": f"{python} cannot be run: {error}"}
    return result


def _kept_packages() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get(PACKAGES_DIR) or Path(cache, "cloudtrain", "packages"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
