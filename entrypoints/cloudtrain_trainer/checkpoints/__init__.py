"""Checkpoints: when they are saved, what they contain, their files, and the weights that training
starts from.
"""
