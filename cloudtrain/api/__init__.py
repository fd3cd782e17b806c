"""The Python interface: jobs, runs, which run is meant, and ranks in a notebook."""
