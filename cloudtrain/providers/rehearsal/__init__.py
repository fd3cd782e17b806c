"""Emulators of each contract on this machine: they execute a cloud's request with processes as
nodes. No SDK.
"""
