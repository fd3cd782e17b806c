"""Usual names of files with secrets, which stay out of a job's source by default.

`.cloudtrainignore` can include them. Only the name and the place count, so that a scan reads no
file for this. Secrets of a job belong to `secrets:` in its spec.
"""

from __future__ import annotations

_NAMES = frozenset(
    {
        ".env",
        ".envrc",
        ".netrc",
        "_netrc",
        ".git-credentials",
        ".pgpass",
        ".my.cnf",
        ".mylogin.cnf",
        ".pypirc",
        ".htpasswd",
        ".dockercfg",
        ".s3cfg",
        ".boto",
        ".databrickscfg",
        ".vault-token",
        ".terraformrc",
        "kaggle.json",
        "application_default_credentials.json",
        "client_secret.json",
        "service_account.json",
        "service-account.json",
        "terraform.tfstate",
        "terraform.tfstate.backup",
        "id_rsa",
        "id_dsa",
        "id_ecdsa",
        "id_ecdsa_sk",
        "id_ed25519",
        "id_ed25519_sk",
    }
)
_ENDINGS = (
    ".pem",
    ".key",
    ".p12",
    ".pfx",
    ".jks",
    ".keystore",
    ".ppk",
    ".kdbx",
    ".tfvars",
    "-credentials.json",
)
_EXAMPLES = (".example", ".sample", ".template", ".dist", ".defaults", ".schema")
"""Endings of examples of a `.env` without secrets."""

_FOLDERS = frozenset({".aws", ".azure", ".ssh", ".gnupg", ".kube", ".gcloud", ".terraform.d"})
_PLACES = (
    ".docker/config.json",
    ".config/gcloud",
    ".config/gh/hosts.yml",
    ".huggingface/token",
    ".streamlit/secrets.toml",
)


def is_likely_secret(path: str, name: str, is_folder: bool) -> bool:
    """Return True if such a file or folder usually holds secrets. `path`: with slashes."""
    if is_folder:
        return name in _FOLDERS or path.endswith(_PLACES)
    if name in _NAMES or name.endswith(_ENDINGS):
        return True
    if name.startswith(".env."):
        return not name.endswith(_EXAMPLES)
    return path.endswith(_PLACES)
