"""Models, data and tasks of users by `module:factory`, with losses and metrics."""
