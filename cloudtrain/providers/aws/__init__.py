"""The aws provider: SageMaker training jobs. Only `client` and `native` import an SDK."""
