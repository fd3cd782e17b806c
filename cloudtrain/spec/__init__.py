"""Reader of job.yaml: the spec as frozen values, or all of its mistakes."""
