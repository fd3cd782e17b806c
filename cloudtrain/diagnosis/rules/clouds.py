"""Rules of clouds: capacity, quota, time, rights and credentials, images and containers."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import SAGEMAKER_TRUST, Rule

_AWS = "https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeTrainingJob.html"


_ASK_AWS = "ask for more in the console: Service Quotas > Amazon SageMaker >"
_IN_STUDIO = (
    "in the studio: Quota > Azure Machine Learning > the workspace's region; or another size"
)

SAGEMAKER_QUOTA = Rule(
    name="sagemaker-quota",
    patterns=(r"ResourceLimitExceeded|account-level service limit",),
    cause="the account's quota on SageMaker is too small for this number of machines",
    remedy=(f"{_ASK_AWS} the instance type's training job usage; or name another instance type"),
    remedies=(
        (
            r"is not available in this region",
            "this region does not offer that instance type for training: name another one, or"
            " another region",
        ),
        (
            r"service limit '(?P<limit>[^']*\bml\.[^']+)'",
            f"{_ASK_AWS} '{{limit}}'; or name another instance type",
        ),
        (r"service limit '(?P<limit>[^']+)'", f"{_ASK_AWS} '{{limit}}'"),
        (
            r"(?P<usage>\bml\.[a-z0-9-]+\.[a-z0-9]+[^'\".]*usage)",
            f"{_ASK_AWS} '{{usage}}'; or name another instance type",
        ),
        (
            r"(?P<kind>\bml\.[a-z0-9-]+\.[a-z0-9]+)",  # older: "for training-job/ml.p2.xlarge is 0"
            f"{_ASK_AWS} '{{kind}} for training job usage'; or name another instance type",
        ),
    ),
    source="https://docs.aws.amazon.com/general/latest/gr/sagemaker.html",
)

AZURE_QUOTA = Rule(
    name="azure-quota",
    patterns=(
        r"ClusterCoreQuotaReached|ClusterMinNodesExceedCoreQuota|QuotaExceeded",
        r"Operation could not be completed as it results in exceeding approved .*quota",
        r"JobNodeCountExceedsCoreQuota|vCPU quota of \d+ and is less than|not enough quota",
        r"exceed(s|ed|ing)? .{0,60}quota .{0,60}(family|cores)|are \d+ vCPUs; the quota of",
    ),
    unless=r"[Dd]isk quota",
    cause="the subscription's quota on Azure is too small for this number of cores",
    remedy=f"ask for more {_IN_STUDIO}",
    remedies=(
        (
            r"\b(?P<family>[Ss]tandard\w+Family)\b",
            f"ask for more of {{family}} {_IN_STUDIO}",
        ),
        (
            r"[Ff]amily '?(?P<family>[\w ]+?)'?[ .,]",
            f"ask for more of {{family}} {_IN_STUDIO}",
        ),
    ),
    source="https://learn.microsoft.com/azure/machine-learning/how-to-manage-quotas",
)

CAPACITY = (
    SAGEMAKER_QUOTA,
    AZURE_QUOTA,
    Rule(
        name="quota-used-up",
        patterns=(
            r"VcpuLimitExceeded|MaxSpotInstanceCountExceeded|InstanceLimitExceeded",
            r"exceeded quota: |Quota '?\w{1,60}'? exceeded",
            r"quota .{0,40}(is|was|has been) exceeded|insufficient .{0,30}quota",
        ),
        unless=r"[Dd]isk quota|SageMaker",
        cause="a quota of the cloud or of the cluster is too small for the request",
        remedy=(
            "ask for more of what the message names, end what else uses it, or take a smaller or"
            " other machine"
        ),
        source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-resource-limits.html",
    ),
    Rule(
        name="slurm-refused",
        patterns=(
            r"srun: error: (Task launch|Unable to (create|confirm|allocate))|Job credential",
            r"Unable to allocate resources",
            (
                r"(sbatch|salloc|srun): error: .{0,80}(Invalid|Batch job submission failed|viola"
                r"tes|not available|More)"
            ),
            r"Requested node configuration is not available|Invalid account or account/partition",
            r"QOSMax|AssocGrp",
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
            r"CapacityError|Unable to provision|[Ii]nsufficient capacity",
            r"InsufficientInstanceCapacity|ZonalAllocationFailed",
            r"OverconstrainedAllocationRequest|AllocationFailed|SkuNotAvailable",
            r"ZONE_RESOURCE_POOL_EXHAUSTED|Insufficient nvidia\.com/gpu",
            r"0/\d+ nodes are available|stockout|not having enough capacity|NO_CAPACITY",
            r"([Nn]ot|[Nn]o) (enough |sufficient |available )capacity|no capacity available",
            r"no capacity came in time",
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
            r"[Ss]pot (instance )?(interrupt|reclaim|terminat)|InstanceInterruption",
            r"MaxWaitTimeExceeded",
            (
                r"(node|machine|VM|instance|job)s? (was|were|has been|have been|got) (pre-?empted|"
                r"evicted|reclaimed)"
            ),
            r"PreemptionError\b|[Pp]re-?emption warning signal",
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
                r"(job|run|JobExecution).{0,60}exceeded .{0,30}(time ?limit|timeout|maximum run "
                r"?time|max_?runtime)"
            ),
            r"JobState=TIMEOUT",
        ),
        cause="the job was ended since its time was up",
        remedy="raise limits.max_runtime; cloudtrain rerun continues from the last checkpoint",
        remedies=(
            (
                r"DUE TO TIME LIMIT|JobState=TIMEOUT",
                "raise Slurm's own limit (sbatch --time, or a partition with a higher one), and"
                " continue from the last checkpoint",
            ),
        ),
        source=_AWS,
    ),
    Rule(
        name="throttled",
        patterns=(
            r"ThrottlingException|Rate exceeded|TooManyRequests|\b429 (Client Error|Too Many)",
            r"SlowDown\b|toomanyrequests|pull rate limit",
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
            r"InternalServerError|[Ww]e encountered an internal error|ServiceUnavailable",
            r"InternalFailure|\"code\": ?\"ServiceError\"",
            r"-(execution-wrapper|lifecycler|hosttools|data-capability)\b.{0,40}failed",
        ),
        cause="the cloud's own service failed",
        remedy=(
            "start again in some minutes; if it comes back, look at the cloud's page of its state,"
            " and on SageMaker keep fewer or smaller checkpoints: it also fails like this if it"
            " cannot copy or restore them"
        ),
        remedies=(
            (
                r"-(execution-wrapper|lifecycler|hosttools|data-capability)\b",
                "Azure's own part of the container failed: start again, fewer jobs at a time; if it"
                " comes back, ask the support of Azure",
            ),
        ),
        restart="retry",
        source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/CommonErrors.html",
        is_symptom=True,
    ),
)

_IAM = "https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-roles.html"

ACCESS = (
    Rule(
        name="role-not-trusted",
        patterns=(r"[Cc]ould not assume role|[Aa]ssumes? .{0,60}role|AssumeRole",),
        cause="SageMaker may not act as the job's role",
        remedy=SAGEMAKER_TRUST,
        source=_IAM,
    ),
    Rule(
        name="azure-storage-firewall",
        patterns=(
            r"\bAuthorizationFailure\b",
            r"This request is not authorized to perform this operation\.(?! using)",
        ),
        cause="the storage account's firewall keeps the job's machines out",
        remedy=(
            "let their network in (az storage account network-rule add, or a private endpoint of"
            " the storage account in the workspace's network)"
        ),
        source="https://learn.microsoft.com/rest/api/storageservices/common-rest-api-error-codes",
    ),
    Rule(
        name="azure-storage-denied",
        patterns=(
            r"StreamAccess[\s\S]{0,2000}(AuthorizationPermissionMismatch|Authentication)",
            r"AuthorizationPermissionMismatch",
            r"ScriptExecution\.\w+\.Authentication",
            r"This request is not authorized to perform this operation",
            r"KeyBasedAuthenticationNotPermitted|PublicAccessNotPermitted",
            r"Server failed to authenticate the request",
        ),
        cause="the job's identity may not read or write the storage account",
        remedy=(
            "give the job's identity Storage Blob Data Contributor"
            " (Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read, /write and"
            " /delete); if the account forbids keys: az ml workspace update"
            " --system-datastores-auth-mode identity"
        ),
        source="https://learn.microsoft.com/azure/machine-learning/how-to-identity-based-service-authentication",
    ),
    Rule(
        name="expired-credentials",
        patterns=(
            r"ExpiredToken|security token included in the request is (expired|invalid)",
            r"InvalidClientTokenId|AADSTS(700082|70043|50173|50078)|token (has|is) expired",
            r"SignatureDoesNotMatch|RequestTimeTooSkewed|Invalid user token",
            r"Invalid username or password|API key must be \d+ characters|InvalidAccessKeyId",
        ),
        cause="credentials were expired or not valid",
        remedy=(
            "log in again (aws sso login, az login); inside a job use its role or identity instead"
            " of copied keys"
        ),
        source="https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_general.html",
    ),
    Rule(
        name="no-credentials",
        patterns=(
            r"Unable to locate credentials|NoCredentialsError",
            r"DefaultAzureCredential failed to retrieve|CredentialUnavailableError",
            r"ManagedIdentityCredential authentication unavailable|api_key not configured",
            r"wandb.{0,40}[Nn]o API key|You must log in|Please run `?az login",
            r"DefaultCredentialsError|LocalTokenNotFoundError|Token is required",
            r"PartialCredentialsError|No API key|ProfileNotFound|could not find credentials",
        ),
        cause="a program found no credentials for a service that it called",
        remedy=(
            "hand the key over as a secret (secrets: in job.yaml), or give the job's role or"
            " identity the right"
        ),
        source="docs/guides/secrets.md",
    ),
    Rule(
        name="aws-denied",
        patterns=(
            r"not authorized to perform|AccessDenied|Access Denied|An error occurred \(403\)",
            r"HTTP 403 Forbidden.{0,80}(S3|s3)|KMS\.?AccessDenied|kms:Decrypt",
            r"does not have \S{1,80} access to the|UnauthorizedOperation|explicit deny",
            r"Data download failed:.{0,200}403 Forbidden",
        ),
        cause="a user or a role lacks a right on AWS",
        remedy="give the action that the message names to whom it names after `User:`",
        remedies=(
            (
                r"(?P<who>arn:aws[\w-]*:(iam|sts)::\S{1,60}/SageMaker\S{0,40}) is not authorized to"
                r" perform: (?P<action>[\w:]+)",
                "allow {action} to the job's role (aws.role), which is {who}",
            ),
            (
                r"(?P<who>arn:aws[\w-]*:(iam|sts)::\S{1,100}) is not authorized to perform:"
                r" (?P<action>[\w:]+)",
                "allow {action} to {who}, which called: the job's role only if aws.role is that"
                " role",
            ),
        ),
        source=_IAM,
    ),
    Rule(
        name="subnet-without-storage",
        patterns=(r"route to an S3 VPC endpoint",),
        cause="the job's subnets cannot reach S3",
        remedy="add a gateway endpoint for S3, or a NAT gateway, to the subnets (aws.subnets)",
        source="https://docs.aws.amazon.com/sagemaker/latest/dg/train-vpc.html",
    ),
    Rule(
        name="azure-denied",
        patterns=(
            r"AuthorizationFailed|does not have authorization to perform action|RBACAccessDenied",
        ),
        cause="an identity lacks a role on Azure",
        remedy=(
            "give the identity a role with the action that the message names: cloudtrain doctor"
            " azure says which"
        ),
        source="https://learn.microsoft.com/azure/role-based-access-control/troubleshooting",
    ),
    Rule(
        name="azure-mlflow",
        patterns=(
            r"mlflow/logged-models failed with error code 404",
            r"azureml_artifacts_builder\(\) got an unexpected keyword argument",
            r"(got unsupported URI '|artifact repository for: )azureml://",
        ),
        cause="this version of MLflow does not work with the tracking server of Azure ML",
        remedy=(
            "mlflow<3 and azureml-mlflow in requirements.txt: Azure ML has no models as MLflow 3"
            " logs them; or, with MLflow 3, save models as files and log metrics alone"
        ),
        restart="after a change",
        source="https://github.com/Azure/azure-sdk-for-python/issues/44896",
    ),
    Rule(
        name="tracker-refused",
        patterns=(
            (
                r"(wandb|W&B).{0,200}([Pp]ermission denied|not have permission|\bERROR\b|[Ee]rro"
                r"r 4\d\d\b|\[4\d\d\])"
            ),
            r"CommError\b|upsertBucket|(RestException|MlflowException): ",
            r"mlflow.{0,120}(API request|failed with code)",
            r"(wandb|neptune|comet_ml|clearml|aim)\.\S{0,80}(Exception|Error): ",
        ),
        places=(r" in [^<]{0,200}[/\\](wandb|mlflow|neptune|comet_ml|clearml|swanlab|aim)[/\\]",),
        unless=r"[Rr]etrying (in|up to [1-9])|will be (resumed|retried)",
        cause="the tracker of experiments (wandb, MLflow or another) refused or failed",
        remedy=(
            "read what it says: a key, a project's name or rights, a value that it does not take, a"
            " server that is down; to train without it: WANDB_MODE=offline in env, or the"
            " framework's setting (report_to: none)"
        ),
        source=(
            "https://docs.wandb.ai/support/kb-articles/resolve_permission_errors_when_logging_run"
        ),
        is_symptom=True,
    ),
)

_ENVIRONMENTS = (
    "https://learn.microsoft.com/azure/machine-learning/how-to-troubleshoot-environments"
)

IMAGES = (
    Rule(
        name="image-not-found",
        patterns=(
            r"pull access denied|denied: requested access to",
            r"CannotPullContainer|FailedPullingImage|[Ii]mage .{0,200}(does not exist|not found|cannot be pulled)",
            r"(pull|find|access).{0,40} image|manifest (for \S+ not found|unknown)",
            r"ImagePullBackOff|ErrImagePull",
        ),
        unless=r"image file|[Ii]mageNet|PIL|\.(jpe?g|png)",
        cause="the image is not at its address, or may not be pulled",
        remedy=(
            "look at the image's address, and whether it was pushed: to ECR in the job's region,"
            " which the role may pull from, or to the workspace's registry"
        ),
        remedies=(
            (
                r"unauthorized|denied",
                "the identity of the job's machines needs AcrPull on the registry"
                " (Microsoft.ContainerRegistry/registries/pull/read): cloudtrain doctor azure says"
                " whose that is; on AWS the role needs the right to pull",
            ),
        ),
        source="https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo.html",
    ),
    Rule(
        name="image-build-failed",
        patterns=(
            r"[Ii]mage build failed|Failed to pull Docker image|\bACR\b|acrpull",
            r"EnvironmentBuildFailed|Failed building the Environment",
            r"failed to run step ID: acb_step|failed to solve: |executor failed running",
            r"The command '.{1,400}' returned a non-zero code",
        ),
        cause="the cloud could not build or pull the environment's image",
        remedy=(
            "look at the image: its log is in the studio, under the environment; the workspace must"
            " be allowed to pull it"
        ),
        source=_ENVIRONMENTS,
    ),
    Rule(
        name="no-docker",
        patterns=(
            r"[Cc]annot connect to the Docker daemon",
            r"while trying to connect to the [Dd]ocker (daemon|API)",
        ),
        cause="the Docker engine does not answer, or may not be used",
        remedy=(
            "start it (systemctl start docker), and join its group (usermod -aG docker USER, then"
            " log in again)"
        ),
        source="https://docs.docker.com/engine/daemon/troubleshoot/",
    ),
    Rule(
        name="wrong-architecture",
        patterns=(
            r"exec format error|Exec format error|does not match the detected host platform",
            r"no matching manifest for",
        ),
        unless=r"-execution-wrapper|-lifecycler|-hosttools",
        cause=(
            "the image, or a program in it, is built for another processor architecture than this"
            " machine has"
        ),
        remedy=(
            "the image is built for another processor architecture than this machine has: docker"
            " build --platform …"
        ),
        source="https://docs.docker.com/build/building/multi-platform/",
    ),
    Rule(
        name="container-cannot-start",
        patterns=(
            r"OCI runtime create failed|failed to create (shim|containerd) task",
            r"CannotStartContainerError|lacks what the job starts with|error creating container",
            r"Error response from daemon: (layer|failed to (create|start)|mount|invalid mount)",
        ),
        cause="the container could not be started",
        remedy=(
            "read the rest of that line: it names the program, mount or device that the container"
            " lacks"
        ),
        source="https://docs.docker.com/engine/containers/run/#exit-status",
        is_symptom=True,
    ),
)
