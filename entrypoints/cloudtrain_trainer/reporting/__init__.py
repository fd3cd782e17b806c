"""Reports of a training: metrics, progress, step times, trackers, profiles."""
