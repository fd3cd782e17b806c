"""What AWS answers when it does not do what was asked: an error code, a message, an HTTP status."""

from __future__ import annotations


class Refused(Exception):
    """An error as a service tells it to its client."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


def invalid(message: str) -> Refused:
    """What SageMaker says of most that it does not like."""
    return Refused("ValidationException", message)
