"""The launcher: on every node it starts torchrun, watches the ranks, and tells truly how they ended.

A package of its own name, so that a user's modules may have any other. Standard library only.
"""
