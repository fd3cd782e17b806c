"""Variables of the tracking server for a job's processes: its address, and a token for MLflow."""

from __future__ import annotations

from tests.fakes.azure.account import Account
from tests.fakes.azure.jobs import Job

TOKEN_SECONDS = 3600.0


def run_principal(name: str) -> str:
    """Whose the token of a run is."""
    return f"run:{name}"


def run_token(job: Job, account: Account) -> str:
    """Return a token that admits the processes of a job to the tracking server only."""
    return account.tokens.bearer(account.url, TOKEN_SECONDS, run_principal(job.name))


def tracking_variables(job: Job, account: Account) -> dict[str, str]:
    """The variables of "Configure MLflow for Azure Machine Learning", and of Microsoft's
    azureml_utils.R.
    """
    return {
        "MLFLOW_TRACKING_URI": (
            f"azureml://{account.url.partition('://')[2]}/mlflow/v1.0{account.scope}?"
        ),
        "MLFLOW_TRACKING_TOKEN": run_token(job, account),
        "MLFLOW_EXPERIMENT_ID": "11111111-2222-3333-4444-555555555555",
        "MLFLOW_EXPERIMENT_NAME": str(job.properties.get("experimentName", "Default")),
        "MLFLOW_RUN_ID": job.name,
    }
