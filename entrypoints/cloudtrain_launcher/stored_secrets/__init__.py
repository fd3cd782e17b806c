"""Secrets that a cloud stores, looked up inside the job with the job's identity. Standard library
only.

A reference says where a secret is stored: `secretsmanager:NAME`, `ssm:NAME` (NAME may be an ARN),
`keyvault:VAULT/NAME`, `keyvault:VAULT/NAME/VERSION`; `#KEY` after it selects one field of a secret
that is a JSON object. A value is only returned: it is never in a log, message, file or argument.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cloudtrain_launcher.stored_secrets import aws as aws_secrets

if TYPE_CHECKING:
    from cloudtrain_launcher.stored_secrets.azure import KeyVault

FORMS = "secretsmanager:NAME, ssm:NAME or keyvault:VAULT/NAME"


def look_up(
    secrets: Mapping[str, str],
    environ: Mapping[str, str],
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """The values of those variables that `environ` does not have yet; RuntimeError that says what
    to do.

    `secrets`: variable -> reference. Returns {} as soon as `cancelled()` is true. An endpoint that
    does not answer may take minutes, so the requests are made in a thread, which is then left
    behind.
    """
    missing = {name: reference for name, reference in secrets.items() if name not in environ}
    if not missing:
        return {}
    found: dict[str, str] = {}
    errors: list[BaseException] = []

    def work() -> None:
        stores = SecretStores(environ)
        try:
            for name, reference in missing.items():
                found[name] = _resolve(name, reference, stores)
        except BaseException as error:  # noqa: BLE001  (raised below, in the thread that waits)
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
    """The stores that a reference can name."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._vaults: KeyVault | None = None

    def get_secret(self, label: str, store: str, name: str) -> str:
        """The value of one secret; RuntimeError that begins with `label` and says what to do."""
        if store != "keyvault":
            return aws_secrets.get_secret(label, store, name, self._environ)
        if self._vaults is None:
            # Not at the top: urllib takes longer to import than half of the launcher, and most jobs
            # do not need it.
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
        raise RuntimeError(
            f"{label} contains a zero byte, which an environment variable cannot contain"
        )
    return value


def _json_field(label: str, value: str, key: str) -> str:
    """One field of a secret that is a JSON object. No message contains any of its values."""
    try:
        document = json.loads(value)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise RuntimeError(f"{label} is not a JSON object: remove #{key} from the reference")
    if key not in document:
        raise RuntimeError(f"{label} has no field {key!r}")
    return document[key] if isinstance(document[key], str) else json.dumps(document[key])
