"""Rules of capacity: no machine, no quota, a machine taken back, or a time limit."""

from __future__ import annotations

from cloudtrain.diagnosis.remedies import azure_quota, sagemaker_quota
from cloudtrain.diagnosis.rule import Rule

_AWS = "https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeTrainingJob.html"

CAPACITY = (
    Rule(
        name="sagemaker-quota",
        patterns=(r"ResourceLimitExceeded", r"account-level service limit"),
        cause="the account's quota on SageMaker is too small for this number of machines",
        remedy=sagemaker_quota,
        restart="after a change",
        source="https://docs.aws.amazon.com/general/latest/gr/sagemaker.html",
    ),
    Rule(
        name="azure-quota",
        patterns=(
            r"ClusterCoreQuotaReached|ClusterMinNodesExceedCoreQuota|QuotaExceeded",
            r"Operation could not be completed as it results in exceeding approved .*quota",
            r"JobNodeCountExceedsCoreQuota|vCPU quota of \d+ and is less than|not enough"
            r" quota|exceed(s|ed|"
            r"ing)? .{0,60}quota .{0,60}(family|cores)|are \d+ vCPUs; the quota of",
        ),
        unless=r"[Dd]isk quota",
        cause="the subscription's quota on Azure is too small for this number of cores",
        remedy=azure_quota,
        restart="after a change",
        source="https://learn.microsoft.com/azure/machine-learning/how-to-manage-quotas",
    ),
    Rule(
        name="quota-used-up",
        patterns=(
            (
                r"VcpuLimitExceeded|MaxSpotInstanceCountExceeded|InstanceLimitExceeded|exceeded"
                r" quota: "
            ),
            (
                r"Quota '?\w{1,60}'? exceeded|quota .{0,40}(is|was|has been) exceeded|insufficient"
                r" .{0,30}quota"
            ),
        ),
        unless=r"[Dd]isk quota|SageMaker",
        cause="a quota of the cloud or of the cluster is too small for the request",
        remedy=(
            "ask for more of what the message names, end what else uses it, or take a smaller or"
            " other machine"
        ),
        restart="after a change",
        source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-resource-limits.html",
    ),
    Rule(
        name="slurm-refused",
        patterns=(
            r"srun: error: (Task launch|Unable to (create|confirm|allocate))|Job credential|"
            r"Unable to allocate resources",
            (
                r"(sbatch|salloc|srun): error: .{0,80}(Invalid|Batch job submission"
                r" failed|violates|not available|More)"
            ),
            (
                r"Requested node configuration is not available|Invalid account or"
                r" account/partition|QOSMax|AssocGrp"
            ),
        ),
        cause="Slurm could not start the job, or a task of it",
        remedy=(
            "look at what it says of the node, partition, account or limit; start again where a"
            " node or a credential failed"
        ),
        restart="retry",
        source="https://slurm.schedmd.com/troubleshoot.html",
    ),
    Rule(
        name="no-capacity",
        patterns=(
            (
                r"CapacityError|Unable to provision|[Ii]nsufficient"
                r" capacity|InsufficientInstanceCapacity"
            ),
            r"ZonalAllocationFailed|OverconstrainedAllocationRequest|AllocationFailed|SkuNotAvailable",
            (
                r"ZONE_RESOURCE_POOL_EXHAUSTED|Insufficient nvidia\.com/gpu|0/\d+ nodes are"
                r" available|stockout"
            ),
            r"not having enough capacity|NO_CAPACITY|([Nn]ot|[Nn]o) (enough |sufficient |available"
            r" )capacity|"
            r"no capacity available|no capacity came in time",
        ),
        cause="the cloud has no free machine of this type at present",
        remedy=(
            "name several instance types in order of preference, wait longer (limits.max_wait), or"
            " try another region"
        ),
        restart="retry",
        source="https://docs.aws.amazon.com/sagemaker/latest/dg/train-troubleshoot.html",
    ),
    Rule(
        name="spot-interrupted",
        patterns=(
            (
                r"[Ss]pot (instance"
                r" )?(interrupt|reclaim|terminat)|InstanceInterruption|MaxWaitTimeExceeded"
            ),
            (
                r"(node|machine|VM|instance|job)s? (was|were|has been|have been|got)"
                r" (preempted|evicted|reclaimed)"
            ),
            r"PreemptedByScheduler|DUE TO PREEMPTION|BidEvictedEvent|EvictedByPreemption",
        ),
        cause="the cloud took the spot machine back",
        remedy=(
            "cloudtrain rerun continues from the last checkpoint; limits.retries does so by itself,"
            " or take machines on demand (resources.spot: false)"
        ),
        restart="retry",
        source="https://docs.aws.amazon.com/sagemaker/latest/dg/model-managed-spot-training.html",
    ),
    Rule(
        name="time-is-up",
        patterns=(
            r"MaxRuntimeExceeded|DUE TO TIME LIMIT|reached its max_runtime|limits\.max_runtime",
            r"time for waiting and training together is over",
            (
                r"(job|run|JobExecution).{0,60}exceeded .{0,30}(time ?limit|timeout|maximum run"
                r" ?time|max_?runtime)"
            ),
            r"JobState=TIMEOUT",
        ),
        cause="the job was ended since its time was up",
        remedy="raise limits.max_runtime; cloudtrain rerun continues from the last checkpoint",
        restart="after a change",
        source=_AWS,
    ),
    Rule(
        name="throttled",
        patterns=(
            (
                r"ThrottlingException|Rate exceeded|TooManyRequests|\b429 (Client Error|Too"
                r" Many)|SlowDown\b"
            ),
            r"toomanyrequests|pull rate limit",
        ),
        cause="a service refused requests since there were too many at a time",
        remedy=(
            "wait a little and start again; let one process download what all need, instead of"
            " every rank"
        ),
        restart="retry",
        source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/CommonErrors.html",
    ),
    Rule(
        name="cloud-failed",
        patterns=(
            r"InternalServerError|[Ww]e encountered an internal"
            r" error|ServiceUnavailable|InternalFailure|"
            r"\"code\": ?\"ServiceError\"",
        ),
        cause="the cloud's own service failed",
        remedy=(
            "start again in some minutes; look at the cloud's page of its state if it comes back"
        ),
        restart="retry",
        source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/CommonErrors.html",
        is_general=True,
    ),
    Rule(
        name="request-refused",
        patterns=(
            r"\bValidationException|InvalidParameterValue|ResourceInUse\b|ConflictException|\bBadRequest\b",
        ),
        cause="the cloud refused the request as not valid",
        remedy=(
            "the message names the field: correct it in job.yaml or cloudtrain.toml (cloudtrain"
            " check finds most before)"
        ),
        restart="after a change",
        source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/CommonErrors.html",
        is_general=True,
    ),
)
