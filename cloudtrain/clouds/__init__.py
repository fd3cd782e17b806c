"""The edge to the clouds: the only modules that import a cloud's SDK."""
