"""Contracts: what each platform promises the containers of a job. One pure module per platform."""
