"""Credentials of the imitated tenant: bearer tokens, SAS signatures, the storage account's key;
made and checked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from tests.fakes.messages import Request

LIFE_SECONDS = 86_400
CLIENT = "tester@example.com"
OBJECT_ID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
_SIGNED = (
    *(
        "content-encoding",
        "content-language",
        "content-length",
        "content-md5",
        "content-type",
        "date",
    ),
    *("if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)
"""The headers of a Shared Key signature, in its order."""


class Tokens:
    """Tokens that one imitated tenant issues and recognises."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self.account_key = base64.b64encode(secrets.token_bytes(64)).decode()

    def bearer(
        self, resource: str, seconds: float = LIFE_SECONDS, principal: str = OBJECT_ID
    ) -> str:
        """Return a token for one resource: shaped like a JWT, with a meaningless signature."""
        issued_at = int(time.time())
        claims = {
            "aud": resource,
            "iat": issued_at,
            "exp": int(issued_at + seconds),
            "oid": principal,
            "upn": CLIENT,
        }
        signed = ".".join(
            _base64(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "HS256"}, claims)
        )
        return f"{signed}.{self._sign(signed)}"

    def audience(self, authorization: str) -> str | None:
        """The resource that an Authorization header's token is for; None for a token that is not
        valid.
        """
        claims = self.claims(authorization)
        return str(claims["aud"]).rstrip("/") if claims else None

    def principal(self, authorization: str) -> str:
        """Whose an Authorization header's token is, as an object id; empty for a token that is not
        valid.
        """
        return str((self.claims(authorization) or {}).get("oid", ""))

    def claims(self, authorization: str) -> dict[str, Any] | None:
        """Return the claims of an Authorization header's token; None for an invalid token."""
        kind, _, token = authorization.partition(" ")
        signed, _, signature = token.rpartition(".")
        if kind != "Bearer" or not signed or not hmac.compare_digest(signature, self._sign(signed)):
            return None
        middle = signed.partition(".")[2]
        claims: dict[str, Any] = json.loads(
            base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4))
        )
        return claims if claims["exp"] > time.time() else None

    def sas(self, container: str, blob: str, permissions: str) -> str:
        """The query of an address that allows this much for a container, or for one blob in it."""
        expiry = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + LIFE_SECONDS))
        query = {"sv": "2024-11-04", "se": expiry, "sr": "b" if blob else "c", "sp": permissions}
        return urlencode({**query, "sig": self._sas_signature(container, blob, query)})

    def account_sas(self, seconds: float) -> str:
        """Return a signature of the account's key for all containers and blobs."""
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
        query = {"sv": "2024-11-04", "se": end, "srt": "co", "ss": "bf", "sp": "rcuwdl"}
        return urlencode({**query, "sig": self._sas_signature("", "", query)})

    def sas_permissions(self, query: Mapping[str, str], container: str, blob: str) -> str | None:
        """Return the permissions in the query of an address; None if it was not signed by us for
        this, or too long ago.
        """
        if is_account_sas(query):
            container = place = ""
            names: tuple[str, ...] = ("sv", "se", "srt", "ss", "sp")
        else:
            place = blob if query.get("sr") == "b" else ""
            names = ("sv", "se", "sr", "sp")
        signed = {name: query.get(name, "") for name in names}
        if not hmac.compare_digest(
            query.get("sig", ""), self._sas_signature(container, place, signed)
        ):
            return None
        time_text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return signed["sp"] if time_text < signed["se"] else None

    def is_shared_key(self, request: Request, accounts: Sequence[str]) -> bool:
        """Return whether a request is signed with the key of the storage account under any of these
        names.
        """
        headers = request.headers
        account = headers.get("authorization", "").removeprefix("SharedKey ").rpartition(":")[0]
        if account not in accounts:
            return False
        length = headers.get("content-length", "")
        lines = [request.method, *(headers.get(name, "") for name in _SIGNED)]
        lines[1 + _SIGNED.index("content-length")] = "" if length == "0" else length
        lines += [
            f"{name}:{value}" for name, value in sorted(headers.items()) if name.startswith("x-ms-")
        ]
        url = urlsplit(request.target)
        resource = f"/{account}{url.path}"
        pairs = sorted(part.partition("=")[::2] for part in url.query.split("&") if part)
        resource += "".join(f"\n{unquote(name).lower()}:{unquote(value)}" for name, value in pairs)
        signature = hmac.digest(
            base64.b64decode(self.account_key), "\n".join([*lines, resource]).encode(), "sha256"
        )
        expected = f"SharedKey {account}:{base64.b64encode(signature).decode()}"
        return hmac.compare_digest(headers.get("authorization", "").encode(), expected.encode())

    def _sas_signature(self, container: str, blob: str, query: Mapping[str, str]) -> str:
        return self._sign("\n".join([container, blob, *query.values()]))

    def _sign(self, text: str) -> str:
        return _base64(hmac.digest(self._secret, text.encode(), hashlib.sha256))


def is_account_sas(query: Mapping[str, str]) -> bool:
    """Return whether the query of an address is signed for a whole account, with its key."""
    return "srt" in query


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
