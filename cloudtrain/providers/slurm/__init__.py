"""Slurm: one sbatch script starts one launcher per node."""
