"""Failure drills: what will happen to a job when something fails, tried on this machine before it
is paid for.
"""
