"""Contracts: what a platform promises a container. One pure module each: a request -> one launch per node."""

from cloudtrain.contracts.launch import Launch, job_document, masked_variables

__all__ = ["Launch", "job_document", "masked_variables"]
