"""Plans as frozen values: what runs, and where. No network, process or SDK."""
