"""Sets up what Azure ML jobs need in a resource group. Only `client` calls the SDK of Azure
Resource Manager.
"""
