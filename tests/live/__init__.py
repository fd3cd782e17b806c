"""Tests that need a real account, run by a person who has one."""
