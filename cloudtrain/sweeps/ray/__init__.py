"""Sweeps by the engine `ray`: Ray Tune places the trials, the journal holds the state."""
