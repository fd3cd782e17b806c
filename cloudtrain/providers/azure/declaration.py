"""Declaration of the azure provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.declaration import Declaration, PackageLimit, Setting, UploadTerms

if TYPE_CHECKING:
    from cloudtrain.spec.section import Section


def _section() -> type[Section]:
    from cloudtrain.providers.azure.section import AzureSection

    return AzureSection


DECLARATION = Declaration(
    name="azure",
    label="Azure ML",
    is_remote=True,
    contract="azureml",
    input_schemes=("", "azureml", "https", "http", "wasbs", "abfss"),
    input_example="azureml://datastores/NAME/paths/FOLDER/",
    image_schemes=("azureml",),
    secret_stores={"keyvault": "VAULT/NAME"},
    no_local_secrets="a Key Vault is asked by the job's identity, and this machine has none",
    uploads=UploadTerms(
        usd=0.018,
        price="hot blobs (LRS) in the US, list price of 2026",
        tool="azcopy copy",
    ),
    publishes=True,
    package_limits=(
        PackageLimit(
            names=("mlflow", "mlflow-skinny"),
            major="3",
            unless="MLFLOW_TRACKING_URI",
            reason="may be MLflow 3, whose models Azure ML refuses (404)",
            instead="mlflow<3 and azureml-mlflow",
        ),
    ),
    request_name="command job",
    section=_section,
    region_setting="location",
    settings={
        "subscription": Setting("Azure subscription"),
        "resource_group": Setting("resource group"),
        "workspace": Setting("Azure ML workspace"),
        "tenant": Setting(
            "Entra tenant of the subscription, if your login belongs to several",
            beside_job="never",
        ),
        "location": Setting(
            "where the workspace is, such as eastus: prices depend on it", beside_job="harmless"
        ),
        "compute": Setting("compute cluster; none: serverless"),
        "datastore": Setting(
            "where checkpoints, model and output are kept",
            default="workspaceblobstore",
        ),
        "repository": Setting(
            "where images that are built are pushed: myregistry.azurecr.io/train"
        ),
        "poll": Setting(
            "seconds between two looks at a job", "seconds", 10.0, beside_job="harmless"
        ),
        "stop_grace": Setting(
            "how long a job that is stopped may take to save and to store what it saved",
            "grace",
            60,
            beside_job="harmless",
        ),
    },
)
