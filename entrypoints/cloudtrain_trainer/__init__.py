"""The trainer that comes with cloudtrain: tasks, strategies, and the training loop that combines
them. See train.py.

It is a package, so that its modules' names do not collide with a user's.
"""
