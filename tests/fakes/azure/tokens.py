"""Credentials of the imitated tenant, and the certificate of its address."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import ipaddress
import json
import secrets
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# A self-signed certificate for localhost, since Azure's clients refuse addresses without TLS.


def make_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """The certificate's file, for clients to trust, and the server's side of it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cloudtrain loopback")])
    today = datetime.datetime.now(datetime.UTC)
    places = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(places), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        # Strict checks want it, which Python 3.13 makes by default (VERIFY_X509_STRICT).
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    public = folder / "certificate.pem"
    private = folder / "key.pem"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    encryption = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return public, context


# Credentials of the imitated tenant: bearer tokens, SAS signatures, the storage account's key; made
# and checked.

LIFE_SECONDS = 86_400
CLIENT = "tester@example.com"
OBJECT_ID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


class Tokens:
    """Tokens that one imitated tenant issues and recognises."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

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

    def _sas_signature(self, container: str, blob: str, query: Mapping[str, str]) -> str:
        return self._sign("\n".join([container, blob, *query.values()]))

    def _sign(self, text: str) -> str:
        return _base64(hmac.digest(self._secret, text.encode(), hashlib.sha256))


def is_account_sas(query: Mapping[str, str]) -> bool:
    """Return whether the query of an address is signed for a whole account, with its key."""
    return "srt" in query


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
