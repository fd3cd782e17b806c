"""The local provider: launchers as processes, under a supervisor that outlives the client."""
