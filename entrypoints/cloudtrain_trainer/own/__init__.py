"""What users bring for themselves: `--model`, `--data` and `--task` by `module:factory`, with
losses and metrics.
"""
