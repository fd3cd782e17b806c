"""Failure drills: faults in a job, tried on this machine before it is paid for."""
