"""Images made real: built by the engine of this machine, pushed to a registry, looked for where a job will look."""
