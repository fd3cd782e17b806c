"""The azure provider: Azure ML command jobs. Only `client`, `storage` and `acr` import an SDK."""
