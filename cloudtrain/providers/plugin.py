"""Everything that a provider in another package imports.

`docs/guides/add-a-provider.md` shows a whole one. Other names may change without notice.
"""

from __future__ import annotations

from pydantic import Field

from cloudtrain.checkup import Check, Question
from cloudtrain.declaration import Declaration, Setting
from cloudtrain.errors import CloudError, Outcome, RunExists, StorageError, UsageError
from cloudtrain.issues import Issue, warning
from cloudtrain.planning.launch import JobDocument, Launch, Request
from cloudtrain.planning.plain import CLOUD_FIELDS, Layout, launches, plain_job
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.reference import ResolvedImage
from cloudtrain.planning.selection import PlannedImage, select_image
from cloudtrain.planning.shell import shell_script
from cloudtrain.planning.target import ProviderConfig, Target
from cloudtrain.providers import DiscoveredRun, KnownRuns, Note, Progress, Provider
from cloudtrain.providers.batch import BatchProvider, JobStatus, program_output
from cloudtrain.providers.shared.idempotent_create import reconcile
from cloudtrain.providers.shared.log_attempt import LogAttempt
from cloudtrain.providers.shared.outcome import FinalState, ended_event
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import LogPart, Observation, Positions, Record
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState
from cloudtrain.settings import Settings
from cloudtrain.source.extract import extract
from cloudtrain.spec.model import JobSpec
from cloudtrain.spec.section import Duration, Money, Section, Size, Strings

__all__ = [
    "CLOUD_FIELDS",
    "BatchProvider",
    "Check",
    "CloudError",
    "Declaration",
    "DiscoveredRun",
    "Duration",
    "Field",
    "FinalState",
    "Issue",
    "JobDocument",
    "JobSpec",
    "JobStatus",
    "KnownRuns",
    "Launch",
    "Layout",
    "LogAttempt",
    "LogPart",
    "Money",
    "Note",
    "Observation",
    "Outcome",
    "Plan",
    "PlannedImage",
    "Positions",
    "Progress",
    "Provider",
    "ProviderConfig",
    "Question",
    "Record",
    "Request",
    "ResolvedImage",
    "RunExists",
    "RunFolder",
    "RunRecord",
    "RunState",
    "Section",
    "Setting",
    "Settings",
    "Size",
    "StorageError",
    "Strings",
    "Target",
    "UsageError",
    "ended_event",
    "extract",
    "launches",
    "plain_job",
    "program_output",
    "reconcile",
    "select_image",
    "shell_script",
    "warning",
]
