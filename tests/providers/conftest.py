"""Fixtures of the provider tests: a cloud of their own."""

from __future__ import annotations

from tests.loopback.fixtures import account, cloud

__all__ = ["account", "cloud"]
