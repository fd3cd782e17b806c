"""What is the same in every cloud: tags, log lines kept once, submissions that are settled later, ends. No SDK."""
