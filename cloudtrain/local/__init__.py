"""What the local provider is made of: folders, checks, the supervisor and the signs of its life."""
