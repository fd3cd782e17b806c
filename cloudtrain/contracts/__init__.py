"""Contracts: what each platform promises the containers of a job. One pure module per platform."""

from cloudtrain.contracts.launch import Launch, job_document, masked_variables

__all__ = ["Launch", "job_document", "masked_variables"]
