"""SageMaker's own service for sweeps: a tuning job, by the protocol of native sweeps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, RunExists
from cloudtrain.planning.launch import Request
from cloudtrain.providers import Progress
from cloudtrain.providers.aws.config import client_of_run
from cloudtrain.providers.shared import idempotent_create
from cloudtrain.runs.observation import Observation
from cloudtrain_launcher.events import Ended, Event, StopRequested

if TYPE_CHECKING:
    from cloudtrain.issues import Issue
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.reference import ResolvedImage
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.providers.native_sweep import NativeSweepState
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.observation import Record
    from cloudtrain.runs.state import RunState

_NEEDED: Mapping[str, type] = {
    "HyperParameterTuningJobName": str,
    "HyperParameterTuningJobConfig.ParameterRanges": dict,
    "TrainingJobDefinition.RoleArn": str,
    "TrainingJobDefinition.OutputDataConfig.S3OutputPath": str,
    "Tags": list,
}


class SageMakerTuning:
    """Tuning jobs. Modules that need boto3 are imported late."""

    def rules(self, plan: Plan) -> list[Issue]:
        """Return what a tuning job cannot express or hold, and violations of the service model."""
        from cloudtrain.providers.aws.tuning_rules import tuning_issues

        return tuning_issues(plan)

    def method(self, plan: Plan) -> str:
        """Name SageMaker's strategy."""
        from cloudtrain.providers.aws.tuning_request import strategy_words

        return strategy_words(plan)

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """Return the body of CreateHyperParameterTuningJob, and the trials' job document."""
        from cloudtrain.providers.aws.tuning_request import tuning_body, tuning_document

        return Request(provider="aws", document=tuning_body(plan, image), job=tuning_document(plan))

    def start(
        self,
        plan: Plan,  # noqa: ARG002
        request: Request,
        folder: RunFolder,
        archive: Path,
        progress: Progress | None,
        record: Record,
    ) -> dict[str, Any]:
        """Upload the source and the job document, then create the tuning job.

        That takes three calls if the source is small.
        """
        from cloudtrain.providers.aws.submit import upload

        cloud = client_of_run(folder)
        body = request.document
        upload(cloud, body["TrainingJobDefinition"], request.job, archive, progress)
        operation = "create_hyper_parameter_tuning_job"
        return idempotent_create.create(
            body["HyperParameterTuningJobName"],
            lambda attempt: _reference(cloud, cloud.create(attempt, "sagemaker", operation, body)),
            lambda: _find(cloud, body),
            record=record,
            attempts=cloud.attempts,
            name_taken_codes=("ResourceInUse",),
        )

    def observe(
        self, folder: RunFolder, state: RunState, record: Record
    ) -> NativeSweepState | None:
        """Describe the tuning job, and list its trials in pages of 100."""
        from cloudtrain.providers.aws.submit import require_same_account
        from cloudtrain.providers.aws.tuning_trials import sweep_state

        cloud = client_of_run(folder)
        body = request_of_sweep(folder)
        self._settle(cloud, folder, body, state, record)
        if state.ref is None:
            return None
        described = _describe(cloud, folder.run_id)
        if described is None:
            require_same_account(cloud, state.ref["arn"], folder.run_id)
            if idempotent_create.is_new(state, time.time()):
                return None
            record(Observation(events=[Ended(time=time.time(), state="failed", reason=_GONE)]))
            return None
        question = {
            "HyperParameterTuningJobName": folder.run_id,
            "MaxResults": 100,
            "SortBy": "CreationTime",
        }
        pages = cloud.pages(
            "sagemaker", "list_training_jobs_for_hyper_parameter_tuning_job", **question
        )
        listed = [summary for page in pages for summary in page.get("TrainingJobSummaries", [])]
        url = state.ref.get("url", "")
        stop_event = state.stop_requested
        return sweep_state(
            folder, body, described, listed, stop_requested=bool(stop_event), url=url
        )

    def stop(self, folder: RunFolder, state: RunState, record: Record) -> bool:
        """Stop the tuning job: SIGTERM to the containers of all trials, and no new trials."""
        from cloudtrain.providers.aws.stop import has_new_tags

        cloud = client_of_run(folder)
        self._settle(cloud, folder, request_of_sweep(folder), state, record)
        if state.ref is None:
            return state.has_ended
        try:
            question = {"HyperParameterTuningJobName": folder.run_id}
            cloud.call("sagemaker", "stop_hyper_parameter_tuning_job", **question)
        except CloudError as error:
            if error.is_denied and has_new_tags(_describe(cloud, folder.run_id)):
                return False
            if error.code not in ("ValidationException", "NotFound"):
                raise
            # SageMaker refuses to stop a tuning job that is over; the next observation reports its
            # end.
            described = _describe(cloud, folder.run_id)
            if described is None or described["HyperParameterTuningJobStatus"] != "InProgress":
                return True
            raise
        record(Observation(events=[StopRequested(time=time.time(), reason="stop was asked")]))
        return True

    def _settle(
        self,
        cloud: AwsClient,
        folder: RunFolder,
        body: Mapping[str, Any],
        state: RunState,
        record: Record,
    ) -> None:
        """Record the result of an interrupted submission."""
        if state.ref is None and (state.may_have_started or not state.has_ended):
            record(Observation(events=_reconcile(cloud, folder, body)))


_GONE = "SageMaker does not know this tuning job (any more)"


def request_of_sweep(folder: RunFolder) -> dict[str, Any]:
    """Return the tuning job's body. StorageError if it lacks members for later steps."""
    from cloudtrain.runs.record import RunRecord

    return RunRecord(folder).request(_NEEDED)


def _reconcile(cloud: AwsClient, folder: RunFolder, body: Mapping[str, Any]) -> list[Event]:
    from cloudtrain.providers.aws.submit import require_same_account

    def find() -> dict[str, Any] | None:
        reference = _find(cloud, body)
        if reference is None:
            require_same_account(cloud, body["TrainingJobDefinition"]["RoleArn"], folder.run_id)
        return reference

    return idempotent_create.reconcile(folder, time.time(), find, "SageMaker")


def _find(cloud: AwsClient, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the tuning job's reference if it is of this submission, or None.

    Raise RunExists for another's.
    """
    from cloudtrain.providers.aws.submit import contains, is_own

    name = body["HyperParameterTuningJobName"]
    described = _describe(cloud, name)
    if described is None:
        return None

    def same_request() -> bool:
        # The URIs of the channels contain the digest of the job document, which has the run id.
        definition = "TrainingJobDefinition"
        return contains(described.get(definition), body[definition])

    if is_own(cloud, described["HyperParameterTuningJobArn"], body["Tags"], same_request):
        return _reference(cloud, described)
    message = f"a tuning job {name} exists already in {cloud.region}"
    raise RunExists(message, hint="choose another --run-id")


def _describe(cloud: AwsClient, name: str) -> dict[str, Any] | None:
    """Return SageMaker's description of a tuning job; None if it does not exist."""
    try:
        return cloud.call(
            "sagemaker", "describe_hyper_parameter_tuning_job", HyperParameterTuningJobName=name
        )
    except CloudError as error:
        if error.code == "NotFound":
            return None
        raise


def _reference(cloud: AwsClient, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference of a tuning job: name, ARN, region and the URL of the console."""
    arn = described["HyperParameterTuningJobArn"]
    name = arn.rpartition("/")[2]
    console = f"https://{cloud.region}.console.aws.amazon.com/sagemaker/home?region={cloud.region}"
    return {
        "name": name,
        "arn": arn,
        "region": cloud.region,
        "url": f"{console}#/hyper-tuning-jobs/{name}",
    }
