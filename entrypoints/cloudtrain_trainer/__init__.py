"""The trainer of cloudtrain: tasks, strategies, and the loop that combines them.

It is a package, so that its modules' names do not collide with a user's. See train.py.
"""
