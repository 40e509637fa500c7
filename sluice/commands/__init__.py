"""Commands of `sluice` that are many lines."""
