"""Estimate the memory of a rank before it is paid for, by a rehearsal on tensors without values."""
