"""Models that are too large for the file of their task, and how models are divided into stages and
blocks.
"""
