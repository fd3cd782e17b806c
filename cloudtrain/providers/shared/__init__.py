"""Code that both clouds share. No SDK."""
