"""Runs on disk: one folder each, with documents written once and events appended only; state is
their fold.
"""
