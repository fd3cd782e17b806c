"""Read a cloud's public price list over HTTPS: no login, no SDK.

Throttled requests are repeated, odd answers refused.
"""

from __future__ import annotations

import gzip
import json
import urllib.error
import urllib.request
import zlib
from email.message import Message
from http.client import HTTPException
from time import sleep
from typing import Any

from cloudtrain import __version__
from cloudtrain.errors import CloudError

ATTEMPTS = 5
ANSWER_SECONDS = 60
MAX_WAIT_SECONDS = 60
"""Maximum wait, whatever the server asks for."""
MAX_BYTES = 256 * 2**20
"""Maximum size of the price list of one region."""
BUSY = (429, 500, 502, 503, 504)


class PricePages:
    """Server of one price list. `base`: its address; redirects are refused."""

    def __init__(self, base: str, name: str) -> None:
        self.base = base
        self.what = name
        self._opener = urllib.request.build_opener(_NoRedirects)

    def document(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path. Raise CloudError if there is none."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._parsed(self._get(path))
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in BUSY or attempt == ATTEMPTS:
                    raise self._failure(
                        f"answered {error.code} {error.reason}", error.code
                    ) from None
                sleep(_seconds(error.headers, attempt))
            except (OSError, HTTPException, EOFError, zlib.error) as error:
                if attempt == ATTEMPTS:
                    why = getattr(error, "reason", None) or error
                    raise self._failure(
                        f"cannot be read: {getattr(why, 'strerror', None) or why}"
                    ) from None
                sleep(2.0 ** (attempt - 1))

        raise AssertionError("the last attempt raises or returns")

    def odd(self, why: str) -> CloudError:
        """Return the error for an unexpected answer."""
        return CloudError(
            f"{self.what} {why}",
            hint="the prices that were known before stay as they are",
        )

    def _get(self, path: str) -> bytes:
        headers = {"Accept-Encoding": "gzip", "User-Agent": f"cloudtrain/{__version__}"}
        request = urllib.request.Request(self.base + path, headers=headers)
        with self._opener.open(request, timeout=ANSWER_SECONDS) as answer:
            is_packed = answer.headers.get("Content-Encoding", "").lower() == "gzip"
            stream: Any = gzip.GzipFile(fileobj=answer) if is_packed else answer
            content: bytes = stream.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise self.odd(f"is longer than {MAX_BYTES // 2**20} MiB")
            if answer.length or not content:
                raise OSError("the answer ended too early")

        return content

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise self.odd("is not JSON") from None
        if not isinstance(document, dict):
            raise self.odd("is not a JSON object")
        return document

    def _failure(self, why: str, status: int = 0) -> CloudError:
        hint = "that region may lack one" if status in (403, 404) else "try again later"
        hint += "; the prices that were known before stay as they are"
        return CloudError(
            f"{self.what} {why}",
            hint=hint,
            code=str(status or ""),
            transient=status in (0, *BUSY),
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treats a redirection as an error: neither price list has one."""

    def redirect_request(self, *answer: Any) -> None:
        """Send no request, so that the answer stays an error."""


def _seconds(headers: Message, attempt: int) -> float:
    """Return the pause before the next attempt."""
    requested = headers.get("Retry-After", "")
    if requested.isdecimal():
        return float(min(int(requested), MAX_WAIT_SECONDS))
    return 2.0 ** (attempt - 1)
