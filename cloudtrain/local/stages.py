"""How a run is staged on this machine, by its contract."""

from __future__ import annotations

from cloudtrain.local.folders import RunPaths
from cloudtrain.local.stage import Stage
from cloudtrain.runs.store import RunFolder


def stage_of(run: RunFolder) -> Stage:
    """The stage for a run's request."""
    paths, request, plan = RunPaths(run.path), run.document("request.json"), run.document("plan.json")
    if plan["provider"] == "docker":
        from cloudtrain.local.docker_stage import docker_stage

        return docker_stage(paths, request, plan)
    contract = plan["target"]["contract"]
    if contract == "sagemaker":
        from cloudtrain.local.sagemaker_stage import SageMakerStage

        return SageMakerStage(paths, request, plan)
    if contract == "azureml":
        from cloudtrain.local.azureml_stage import AzureMLStage

        return AzureMLStage(paths, request, plan)
    from cloudtrain.local.plain_stage import PlainStage

    return PlainStage(paths, request)
