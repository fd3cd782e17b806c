"""What Azure ML is called, and what of a spec it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.declaration import Declaration

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
    input_schemes=("", "azureml", "https", "wasbs", "abfss"),
    input_example="azureml://datastores/NAME/paths/FOLDER/",
    image_schemes=("azureml",),
    secret_stores={"keyvault": "VAULT/NAME"},
    no_local_secrets="a Key Vault is asked by the job's identity, and this machine has none",
    request_name="command job",
    section=_section,
)
