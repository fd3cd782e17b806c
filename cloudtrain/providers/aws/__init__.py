"""The aws provider: SageMaker training jobs. Only `client` and `errors` import an SDK."""
