"""Sweeps by the engine `ray`: Ray Tune places the trials, and what it would forget is in the
journal.
"""
