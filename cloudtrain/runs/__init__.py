"""Runs on disk: documents are written once, events are appended, state is their fold."""
