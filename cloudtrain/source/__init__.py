"""Source of a job: the files that are sent, their digest, and their archive."""
