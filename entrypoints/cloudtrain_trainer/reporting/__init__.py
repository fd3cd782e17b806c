"""What a run tells while it trains: metrics, progress, trackers, profiles."""
