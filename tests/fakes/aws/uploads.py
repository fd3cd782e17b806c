"""When multipart uploads were begun: moto tells the same day of 2010 of all of them, S3 tells the
truth.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from tests.fakes.messages import Call, Response

_UPLOAD = re.compile(r"<Upload>.*?</Upload>", re.DOTALL)
_ID = re.compile(r"<UploadId>(.*?)</UploadId>")


class Uploads:
    """Uploads of one account. `started`: upload id -> Unix timestamp; tests may backdate one."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}

    def told(self, call: Call, answer: Response) -> Response:
        """Return the answer with its real times (API reference, MultipartUpload: Initiated)."""
        if call == ("s3", "CreateMultipartUpload"):
            match = _ID.search(answer.body.decode())
            if match:
                self.started[match[1]] = time.time()
        if call != ("s3", "ListMultipartUploads"):
            return answer
        body = _UPLOAD.sub(lambda upload: self._dated(upload[0]), answer.body.decode())
        return answer._replace(body=body.encode())

    def _dated(self, upload: str) -> str:
        match = _ID.search(upload)
        when = datetime.fromtimestamp(self.started.get(match[1] if match else "", 0), UTC)
        return re.sub(
            r"<Initiated>.*?</Initiated>",
            f"<Initiated>{when:%Y-%m-%dT%H:%M:%S.000Z}</Initiated>",
            upload,
        )
