"""Modules that the client and the nodes share. Standard library only; Python 3.10 or newer."""
