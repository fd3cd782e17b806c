"""From a spec to a plan, as frozen values: where a job is to run, and what it is there. No network,
process or SDK.
"""
