"""Images as values: what one is built from, its digest, and what its address says. No engine, no
network.
"""
