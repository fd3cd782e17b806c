"""From a plan to a started run: last checks, images made real, the run folder, the start."""
