"""Tests for authors of providers. They need pytest, which only this package imports."""
