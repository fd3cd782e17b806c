"""Training itself: the loop, the optimizer step, and micro-batches that fit into memory."""
