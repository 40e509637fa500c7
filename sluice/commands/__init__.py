"""The larger commands of `sluice`, and the output of all commands."""
