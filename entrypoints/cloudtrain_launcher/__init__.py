"""The launcher: on every node it runs torchrun, watches the ranks, and reports how they ended.

Standard library only.
"""
