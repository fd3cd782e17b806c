"""Contracts: the environment of a job's containers on each platform. Pure modules."""
