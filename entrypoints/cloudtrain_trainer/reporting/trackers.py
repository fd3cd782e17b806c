"""Trackers that a run reports to: TensorBoard and MLflow."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class Trackers:
    """Writes TensorBoard files, and to MLflow by $MLFLOW_TRACKING_URI.

    Each needs its package. TensorBoard's files go to $CLOUDTRAIN_TENSORBOARD_DIR, else to
    `<output>/tensorboard`. `settings`: the options of the run, as MLflow's parameters.
    `active`: false on all ranks except the first.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any], active: bool = True) -> None:
        self._sinks: dict[
            str, tuple[Callable[[int, Mapping[str, float]], None], Callable[[str], None]]
        ] = {}
        if active and find_spec("tensorboard") is not None:
            folder = Path(os.environ.get("CLOUDTRAIN_TENSORBOARD_DIR") or output / "tensorboard")
            self._try("TensorBoard", lambda: self._start_tensorboard(folder))

        if active and os.environ.get("MLFLOW_TRACKING_URI") and find_spec("mlflow") is not None:
            self._try("MLflow", lambda: self._start_mlflow(settings))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write values of a step by name, such as `train/loss`."""
        for name, (write, _) in list(self._sinks.items()):
            self._try(name, partial(write, step, values))

    def close(self, outcome: str) -> None:
        """Finish with the outcome of the run: succeeded, stopped or failed."""
        for name, (_, end) in list(self._sinks.items()):
            self._try(name, partial(end, outcome))
        self._sinks.clear()

    def _start_tensorboard(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter(str(folder))

        def write(step: int, values: Mapping[str, float]) -> None:
            for key, value in values.items():
                writer.add_scalar(key, value, step)
            writer.flush()

        self._sinks["TensorBoard"] = write, lambda outcome: writer.close()  # noqa: ARG005

    def _start_mlflow(self, settings: Mapping[str, Any]) -> None:
        mlflow: Any = import_module("mlflow")  # by name: mypy must not look for it

        mlflow.start_run(
            run_id=os.environ.get("MLFLOW_RUN_ID"), run_name=os.environ.get("CLOUDTRAIN_RUN_ID")
        )
        mlflow.log_params({key: str(value) for key, value in settings.items()})
        statuses = {"succeeded": "FINISHED", "stopped": "KILLED"}
        self._sinks["MLflow"] = (
            lambda step, values: mlflow.log_metrics(dict(values), step=step),
            lambda outcome: mlflow.end_run(status=statuses.get(outcome, "FAILED")),
        )

    def _try(self, name: str, act: Callable[[], None]) -> None:
        """Drop a tracker that fails, with a warning."""
        try:
            act()
        except Exception as error:  # noqa: BLE001  (a network, a server, a version: anything)
            self._sinks.pop(name, None)
            print(
                f"warning: {name} is turned off: {type(error).__name__}: {error}",
                file=sys.stderr,
                flush=True,
            )
