"""The local provider: launchers as processes of this machine, under a supervisor that outlives the
client.
"""
