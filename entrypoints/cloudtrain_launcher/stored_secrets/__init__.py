"""Secrets that a cloud keeps for the job, looked up inside it by the job's own identity. Standard library only.

A reference says where one is kept: `secretsmanager:NAME`, `ssm:NAME` (an ARN may stand for the name),
`keyvault:VAULT/NAME`, `keyvault:VAULT/NAME/VERSION`; `#KEY` after it asks for one field of a secret that is a JSON
object. A value is returned and nothing else is done with it: it is in no log, message, file or argument.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Callable, Mapping

from cloudtrain_launcher.stored_secrets import aws as aws_secrets

if TYPE_CHECKING:
    from cloudtrain_launcher.stored_secrets.azure import KeyVault

FORMS = "secretsmanager:NAME, ssm:NAME or keyvault:VAULT/NAME"


def look_up(
    secrets: Mapping[str, str], environ: Mapping[str, str], cancelled: Callable[[], bool] = lambda: False
) -> dict[str, str]:
    """The values of those variables that are not in the environment already; RuntimeError with the remedy.

    `until`: a reason to wait no longer, such as SIGTERM; nothing is returned then. An endpoint that does not answer
    may keep us busy for minutes: so the asking is done in a thread of its own, which may be left behind.
    """
    wanted = {name: reference for name, reference in secrets.items() if name not in environ}
    if not wanted:
        return {}
    found: dict[str, str] = {}
    errors: list[BaseException] = []

    def work() -> None:
        stores = SecretStores(environ)
        try:
            for name, reference in wanted.items():
                found[name] = _resolve(name, reference, stores)
        except BaseException as error:  # noqa: BLE001  (raised below, where it is waited for)
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True, name="secrets")
    thread.start()
    while thread.is_alive() and not cancelled():
        thread.join(0.1)
    if cancelled():
        return {}
    if errors:
        raise errors[0]
    return found


class SecretStores:
    """Everything that a reference may begin with."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._vaults: KeyVault | None = None

    def get_secret(self, label: str, store: str, name: str) -> str:
        """The value of one secret; RuntimeError, beginning with `what`, with the remedy."""
        if store != "keyvault":
            return aws_secrets.get_secret(label, store, name, self._environ)
        if self._vaults is None:
            # Not above: urllib takes longer to load than half of the launcher, and most jobs do without.
            from cloudtrain_launcher.stored_secrets.azure import KeyVault

            self._vaults = KeyVault(self._environ)
        return self._vaults.get_secret(label, name)


def _resolve(variable: str, reference: str, stores: SecretStores) -> str:
    label = f"secret {variable} ({reference})"
    store, _, rest = reference.partition(":")
    name, _, key = rest.partition("#")
    if store not in (*aws_secrets.PERMISSIONS, "keyvault") or not name:
        raise RuntimeError(f"secret {variable}: cannot read {reference!r}; write {FORMS}")
    value = stores.get_secret(label, store, name)
    if key:
        value = _json_field(label, value, key)
    if "\0" in value:
        raise RuntimeError(f"{label} holds a zero byte: no environment variable can hold it")
    return value


def _json_field(label: str, value: str, key: str) -> str:
    """One field of a secret that is a JSON object. No message repeats any of it."""
    try:
        document = json.loads(value)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise RuntimeError(f"{label} is no JSON object: ask for it without #{key}")
    if key not in document:
        raise RuntimeError(f"{label} has no field {key!r}")
    return document[key] if isinstance(document[key], str) else json.dumps(document[key])
