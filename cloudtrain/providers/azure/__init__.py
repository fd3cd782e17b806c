"""The azure provider: Azure ML command jobs. `client`, `errors`, `sdk` and `storage` import an SDK."""
