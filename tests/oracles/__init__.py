"""Programs of the clouds' own makers judge what this package reads and writes: `make oracles`."""
