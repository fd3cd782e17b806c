"""Rules of missing rights in a cloud, credentials, tokens and permissions of files."""

from __future__ import annotations

from cloudtrain.diagnosis.remedies import SAGEMAKER_TRUST
from cloudtrain.diagnosis.rule import Rule

_IAM = "https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-roles.html"

ACCESS = (
    Rule(
        name="role-not-trusted",
        patterns=(r"[Cc]ould not assume role|[Aa]ssumes? .{0,60}role|AssumeRole",),
        cause="SageMaker may not act as the job's role",
        remedy=SAGEMAKER_TRUST,
        restart="after a change",
        source=_IAM,
    ),
    Rule(
        name="azure-storage-denied",
        patterns=(
            r"StreamAccess[\s\S]{0,2000}(AuthorizationPermissionMismatch|Authentication)",
            r"AuthorizationPermissionMismatch|AuthorizationFailure|ScriptExecution\.\w+\.Authentication",
            r"This request is not authorized to perform this"
            r" operation|KeyBasedAuthenticationNotPermitted|"
            r"PublicAccessNotPermitted|Server failed to authenticate the request",
        ),
        cause="the job's identity may not read or write the storage account",
        remedy=(
            "the job's identity needs Storage Blob Data Contributor on the storage account of its"
            " inputs and outputs"
            " (Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read, /write and"
            " /delete): cloudtrain doctor azure says whose that is"
        ),
        restart="after a change",
        source="https://learn.microsoft.com/azure/machine-learning/how-to-identity-based-service-authentication",
    ),
    Rule(
        name="expired-credentials",
        patterns=(
            (
                r"ExpiredToken|security token included in the request is"
                r" (expired|invalid)|InvalidClientTokenId"
            ),
            (
                r"AADSTS(700082|70043|50173|50078)|token (has|is)"
                r" expired|SignatureDoesNotMatch|RequestTimeTooSkewed"
            ),
            (
                r"Invalid user token|Invalid username or password|API key must be \d+"
                r" characters|InvalidAccessKeyId"
            ),
        ),
        cause="credentials were expired or not valid",
        remedy=(
            "log in again (aws sso login, az login); inside a job use its role or identity instead"
            " of copied keys"
        ),
        restart="after a change",
        source="https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_general.html",
    ),
    Rule(
        name="no-credentials",
        patterns=(
            (
                r"Unable to locate credentials|NoCredentialsError|DefaultAzureCredential failed to"
                r" retrieve"
            ),
            r"CredentialUnavailableError|ManagedIdentityCredential authentication unavailable",
            (
                r"api_key not configured|wandb.{0,40}[Nn]o API key|You must log in|Please run `?az"
                r" login"
            ),
            r"DefaultCredentialsError|LocalTokenNotFoundError|Token is"
            r" required|PartialCredentialsError|"
            r"No API key|ProfileNotFound|could not find credentials",
        ),
        cause="a program found no credentials for a service that it called",
        remedy=(
            "hand the key over as a secret (secrets: in job.yaml), or give the job's role or"
            " identity the right"
        ),
        restart="after a change",
        source="https://boto3.amazonaws.com/v1/documentation/api/latest/guide/credentials.html",
    ),
    Rule(
        name="aws-denied",
        patterns=(
            r"not authorized to perform|AccessDenied|Access Denied|An error occurred \(403\)",
            r"HTTP 403 Forbidden.{0,80}(S3|s3)|KMS\.?AccessDenied|kms:Decrypt",
            r"does not have \S{1,80} access to the|UnauthorizedOperation|explicit deny",
        ),
        cause="the job's role lacks a right",
        remedy="the job's role (aws.role) lacks a permission that the message names",
        restart="after a change",
        source=_IAM,
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
        restart="after a change",
        source="https://learn.microsoft.com/azure/role-based-access-control/troubleshooting",
    ),
    Rule(
        name="tracker-refused",
        patterns=(
            (
                r"(wandb|W&B).{0,200}([Pp]ermission denied|not have permission|\bERROR\b|[Ee]rror"
                r" 4\d\d\b|\[4\d\d\])"
            ),
            r"CommError\b|upsertBucket",
            r"(RestException|MlflowException): |mlflow.{0,120}(API request|failed with code)",
            r"(neptune|comet_ml|clearml|aim)\.\S{0,80}(Exception|Error): ",
        ),
        places=(r" in [^<]{0,200}[/\\](wandb|mlflow|neptune|comet_ml|clearml|swanlab|aim)[/\\]",),
        unless=r"[Rr]etrying (in|up to [1-9])|will be (resumed|retried)",
        cause="the tracker of experiments (wandb, MLflow or another) refused or failed",
        remedy=(
            "read what it says: a key, a project's name or rights, a value that it does not take, a"
            " server that is down; to train without it: WANDB_MODE=offline in env, or the"
            " framework's setting (report_to: none)"
        ),
        restart="after a change",
        source=(
            "https://docs.wandb.ai/support/kb-articles/resolve_permission_errors_when_logging_run"
        ),
        is_general=True,
    ),
)
