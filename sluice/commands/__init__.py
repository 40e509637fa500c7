"""The command line: `cli` is the command `sluice`, with a list of all commands."""
