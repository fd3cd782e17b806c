"""Reads a cloud's public price list over HTTPS: no login, no SDK; throttling is waited out, odd
answers are refused.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from email.message import Message
from http.client import HTTPException
from time import sleep
from typing import Any

from cloudtrain import __version__
from cloudtrain.errors import CloudError

ATTEMPTS = 5
ANSWER_SECONDS = 60
MAX_WAIT_SECONDS = 60
"""A server that asks for a longer wait is asked again after this one."""
MAX_BYTES = 256 * 2**20
"""A longer document is not a price list of one region."""
BLOCK_BYTES = 1 << 16
BUSY = (429, 500, 502, 503, 504)


class PricePages:
    """One price list's server. `base`: its address, from which no answer leads away."""

    def __init__(self, base: str, what: str) -> None:
        self.base = base
        self.what = what
        self._opener = urllib.request.build_opener(_NoRedirects)

    def document(self, path: str) -> dict[str, Any]:
        """The JSON object at a path. CloudError when it cannot be had, or is none."""
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
            except (OSError, HTTPException, zlib.error) as error:
                if attempt == ATTEMPTS:
                    why = getattr(error, "reason", None) or error
                    raise self._failure(
                        f"cannot be read: {getattr(why, 'strerror', None) or why}"
                    ) from None
                sleep(2.0 ** (attempt - 1))
        raise AssertionError("the last attempt raises or returns")

    def odd(self, why: str) -> CloudError:
        """The error for an answer that no price list gives."""
        return CloudError(
            f"{self.what} {why}", hint="the prices that were known before stay as they are"
        )

    def _get(self, path: str) -> bytes:
        headers = {"Accept-Encoding": "gzip", "User-Agent": f"cloudtrain/{__version__}"}
        request = urllib.request.Request(self.base + path, headers=headers)
        with self._opener.open(request, timeout=ANSWER_SECONDS) as answer:
            blocks: Iterator[bytes] = iter(lambda: answer.read(BLOCK_BYTES), b"")
            if answer.headers.get("Content-Encoding", "").lower() == "gzip":
                blocks = _unpacked(blocks)
            found = bytearray()
            for block in blocks:
                found += block
                if len(found) > MAX_BYTES:
                    raise self.odd(f"is longer than {MAX_BYTES // 2**20} MiB")
            declared = answer.headers.get("Content-Length")
            if answer.length or (declared is None and not found):
                raise OSError("the answer ended too early")
        return bytes(found)

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise self.odd("is not JSON") from None
        if not isinstance(found, dict):
            raise self.odd("is not a JSON object")
        return found

    def _failure(self, why: str, status: int = 0) -> CloudError:
        hint = "there may be none of that region" if status in (403, 404) else "try again later"
        hint += "; the prices that were known before stay as they are"
        return CloudError(
            f"{self.what} {why}", hint=hint, code=str(status or ""), transient=status in (0, *BUSY)
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirection for an error: neither list has any."""

    def redirect_request(self, *answer: Any) -> None:
        """No request follows, so that the answer stays an error."""


def _unpacked(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """What gzip has packed, in blocks of bounded size. OSError when it ends too early."""
    packed = zlib.decompressobj(16 + zlib.MAX_WBITS)
    for block in blocks:
        rest = block
        while rest and not packed.eof:
            yield packed.decompress(rest, BLOCK_BYTES)
            rest = packed.unconsumed_tail
    if not packed.eof:
        raise OSError("the answer ended too early")


def _seconds(headers: Message, attempt: int) -> float:
    """How long to wait before the next attempt."""
    asked = headers.get("Retry-After", "")
    return float(min(int(asked), MAX_WAIT_SECONDS)) if asked.isdecimal() else 2.0 ** (attempt - 1)
