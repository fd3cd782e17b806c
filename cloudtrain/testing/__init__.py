"""Tests for those who extend cloudtrain. They need pytest, which is imported with them and nowhere
else.
"""
