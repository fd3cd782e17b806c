"""Sweeps by the engine `ray`: Ray places the trials, the journal holds the state."""
