"""Tests on a real Slurm, which `.ci/engine slurm start` gives."""
