"""Checkpoints: when they are saved, their content and files, and starting weights."""
