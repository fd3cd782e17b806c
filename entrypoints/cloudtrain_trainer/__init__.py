"""The shared trainer: tasks, strategies and the loop between them; train.py is its program.

A package of its own name, so that a user's modules may have any other.
"""
