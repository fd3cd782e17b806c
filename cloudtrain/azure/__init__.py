"""Azure ML without its SDK: what a plan becomes there, by which rules, and what its answers mean. No network."""
