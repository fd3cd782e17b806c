"""Emulators of the contracts: processes on this machine act as nodes. No SDK."""
