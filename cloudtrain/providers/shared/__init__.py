"""What both clouds share: account settings, tags, idempotent job creation, log reading and job
outcomes. No SDK.
"""
