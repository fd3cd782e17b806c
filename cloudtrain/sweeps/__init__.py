"""Sweeps: which trials are run, what became of them, and what is done next; a trial is a run of the
ordinary kind.
"""
