"""Training data: which rank sees which samples, from data sets, iterables and files."""
