"""Packages that a job asks for, and the environments that hold them. Standard library only."""
