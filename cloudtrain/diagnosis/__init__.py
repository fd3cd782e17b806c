"""Causes of failed and slow runs, computed from events, logs and the platform's reason."""
