"""A contract kept on this machine: a cloud's request executed here, its nodes as processes. No SDK."""
