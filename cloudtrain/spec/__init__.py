"""The job spec: what job.yaml may say, as frozen values, and how it is read with all its mistakes
at once.
"""
