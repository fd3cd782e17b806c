"""Meaning of Azure's errors to a user, by code and by words; and which login failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.mgmt.core.exceptions import ARMErrorFormat

from cloudtrain.errors import CloudError, CloudtrainError, Outcome
from cloudtrain.providers.azure.error_codes import BY_CODE, meaning
from cloudtrain.providers.azure.errors import translated

TENANT = "bbbbbbbb-2222-3333-4444-555555555555"
PRIVATE = (
    "User is not authorized to access provided resources due to none of the workspaces/registries"
    " are accessible from outside of the designated private link."
)


class Answer(NamedTuple):
    """An answer of a service of Azure, as azure-core reads it."""

    status_code: int
    code: str = ""
    message: str = "no"
    headers: dict[str, str] = {}  # noqa: RUF012
    reason: str = "Forbidden"
    request: Any = None

    def text(self, encoding: str | None = None) -> str:
        if not self.code:
            return ""
        return json.dumps({"error": {"code": self.code, "message": self.message}})

    def body(self) -> bytes:
        return self.text().encode()


def error_of(answer: Answer, action: str = "") -> CloudtrainError:
    kind = ClientAuthenticationError if answer.status_code == 401 else HttpResponseError
    error = kind(response=answer, error_format=ARMErrorFormat)
    return translated(error, "creating the job", "the workspace w", action)


def stored(code: str) -> Answer:
    """The answer of storage to a HEAD: a code in a header, and no body."""
    return Answer(403, headers={"x-ms-error-code": code, "x-ms-version": "2025-11-05"})


@pytest.mark.parametrize(
    ("answer", "words", "hint"),
    [
        (Answer(403, "UserError", PRIVATE), "private network alone", "inside its virtual network"),
        (stored("AuthorizationFailure"), "firewall keeps", "network-rule add"),
        (stored("AuthorizationPermissionMismatch"), "not authorized", "Storage Blob Data Contr"),
        (stored("KeyBasedAuthenticationNotPermitted"), "takes no keys", "auth-mode identity"),
        (Answer(403, "RequestDisallowedByPolicy"), "Azure Policy", "no role helps"),
        (Answer(409, "ScopeLocked"), "a lock forbids", "az lock list"),
        (Answer(409, "ReadOnlyDisabledSubscription"), "is disabled", "its owner"),
        (Answer(409, "MissingSubscriptionRegistration"), "not registered", "az provider register"),
        (
            Answer(
                401,
                "InvalidAuthenticationTokenTenant",
                f"It must match the tenant 'https://sts.windows.net/{TENANT}/' associated with it.",
            ),
            "of another tenant",
            f"az login --tenant {TENANT}, or the setting azure.tenant: {TENANT}",
        ),
        (
            Answer(403, "AuthorizationFailed", "'x' may not perform action 'M.ML/w/jobs/write'"),
            "not authorized",
            "(M.ML/w/jobs/write: AzureML Data Scientist",
        ),
        (Answer(401, "AuthenticationFailed", "Unauthorized: MFA is required"), "MFA", "az login"),
        (Answer(404, "ResourceGroupNotFound"), "no such resource group", "az group list"),
        (Answer(403, "BrandNewCode"), "Azure refuses it: no (BrandNewCode)", "doctor azure"),
        (Answer(401, "BrandNewCode"), "does not accept these credentials", "az login"),
        (Answer(400, "UserError", "Experiment name must be short."), "Experiment name", ""),
    ],
)
def test_an_error_says_its_cause_and_what_to_do(answer: Answer, words: str, hint: str) -> None:
    error = error_of(answer)
    assert words in str(error)
    assert hint in (error.hint or "")


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_failed_service_may_have_started_the_job_whatever_the_code(status: int) -> None:
    assert error_of(Answer(status, "AuthorizationFailed")).outcome is Outcome.UNKNOWN


def test_no_placeholder_of_the_table_is_left() -> None:
    for code in BY_CODE:
        kind = meaning(code, "")
        assert kind is not None
        assert "{" not in kind.words + kind.hint


ATTEMPTS = """DefaultAzureCredential failed to retrieve a token from the included credentials.
Attempted credentials:
\tEnvironmentCredential: EnvironmentCredential authentication unavailable. Variables are not fully configured.
Visit https://aka.ms/azsdk/python/identity/environmentcredential/troubleshoot to troubleshoot this issue.
\tManagedIdentityCredential: ManagedIdentityCredential authentication unavailable.
\tSharedTokenCacheCredential: SharedTokenCacheCredential authentication unavailable. No accounts were found.
\tVisualStudioCodeCredential: VisualStudioCodeCredential requires the 'azure-identity-broker' package to be installed.
\tAzureCliCredential: {az}

\tAzurePowerShellCredential: PowerShell is not installed
\tAzureDeveloperCliCredential: Azure Developer CLI could not be found. Please visit https://aka.ms/azure-dev
To mitigate this issue, please refer to the troubleshooting guidelines here."""


@pytest.mark.parametrize(
    ("az", "words"),
    [
        ("Please run 'az login' to set up an account", "no Azure credentials"),
        ("ERROR: AADSTS50076: you must use multi-factor authentication", "proof of who you are"),
        ("ERROR: AADSTS700082: The refresh token has expired due to inactivity", "have expired"),
        ("ERROR: AADSTS53003: Access has been blocked by Conditional Access", "Conditional Access"),
    ],
)
def test_of_all_ways_to_log_in_the_one_that_is_set_up_is_the_cause(az: str, words: str) -> None:
    text = ATTEMPTS.format(az=az)
    error = translated(ClientAuthenticationError(text), "listing jobs", "")
    assert isinstance(error, CloudError)
    assert words in str(error)
    assert str(error).endswith(f": AzureCliCredential: {az}")


def test_without_any_login_every_way_is_named() -> None:
    text = ATTEMPTS.format(az="Azure CLI not found on path")
    error = translated(ClientAuthenticationError(text), "listing jobs", "")
    assert "EnvironmentCredential" in str(error)
    assert "AzureDeveloperCliCredential" in str(error)


def test_the_tenant_of_the_settings_is_the_one_that_is_logged_in_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloudtrain.providers.azure import sdk

    asked: list[dict[str, Any]] = []

    class Source:
        def __init__(self, **options: Any) -> None:
            asked.append(options)

        def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            asked.append(options)
            return AccessToken("t", 2**40)

    monkeypatch.setattr(sdk, "DefaultAzureCredential", Source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDTRAIN_AZURE_TENANT", TENANT)
    sdk.credential.cache_clear()
    sdk.credential().get_token("s")
    sdk.credential.cache_clear()
    assert asked == [{"additionally_allowed_tenants": [TENANT]}, {"tenant_id": TENANT}]
