"""Rules: somebody may not do something: rights in a cloud, credentials, tokens, permissions of files."""

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
        ),
        cause="the job's identity may not read or write the storage account",
        remedy="the job's identity needs Storage Blob Data Contributor on the storage account of its inputs and "
        "outputs "
        "(Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read, /write and /delete): cloudtrain doctor "
        "azure says whose that is",
        restart="after a change",
        source="https://learn.microsoft.com/azure/machine-learning/how-to-identity-based-service-authentication",
    ),
    Rule(
        name="expired-credentials",
        patterns=(
            r"ExpiredToken|security token included in the request is (expired|invalid)|InvalidClientTokenId",
            r"AADSTS(700082|70043|50173|50078)|token (has|is) expired|SignatureDoesNotMatch|RequestTimeTooSkewed",
        ),
        cause="credentials were expired or not valid",
        remedy="log in again (aws sso login, az login); inside a job use its role or identity instead of copied keys",
        restart="after a change",
        source="https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_general.html",
    ),
    Rule(
        name="no-credentials",
        patterns=(
            r"Unable to locate credentials|NoCredentialsError|DefaultAzureCredential failed to retrieve",
            r"CredentialUnavailableError|ManagedIdentityCredential authentication unavailable",
            r"api_key not configured|wandb.{0,40}[Nn]o API key|You must log in|Please run `?az login",
        ),
        cause="a program found no credentials for a service that it called",
        remedy="hand the key over as a secret (secrets: in job.yaml), or give the job's role or identity the right",
        restart="after a change",
        source="https://boto3.amazonaws.com/v1/documentation/api/latest/guide/credentials.html",
    ),
    Rule(
        name="gated-model",
        patterns=(
            r"Cannot access gated repo|is a gated repo|GatedRepoError|RepositoryNotFoundError",
            r"401 Client Error.{0,200}huggingface|Repository Not Found for url|"
            r"is not a local folder and is not a valid model identifier",
        ),
        cause="a model or data set of the hub was refused: it is gated or private, or its name is wrong",
        remedy="check its name, accept its conditions on its page, and hand a token over as a secret (HF_TOKEN)",
        restart="after a change",
        source="https://huggingface.co/docs/hub/models-gated",
    ),
    Rule(
        name="aws-denied",
        patterns=(
            r"not authorized to perform|AccessDenied|Access Denied|An error occurred \(403\)",
            r"HTTP 403 Forbidden.{0,80}(S3|s3)|KMS\.?AccessDenied|kms:Decrypt",
        ),
        cause="the job's role lacks a right",
        remedy="the job's role (aws.role) lacks a permission that the message names",
        restart="after a change",
        source=_IAM,
    ),
    Rule(
        name="azure-denied",
        patterns=(r"AuthorizationFailed|does not have authorization to perform action|RBACAccessDenied",),
        cause="an identity lacks a role on Azure",
        remedy="give the identity a role with the action that the message names: cloudtrain doctor azure says which",
        restart="after a change",
        source="https://learn.microsoft.com/azure/role-based-access-control/troubleshooting",
    ),
)
