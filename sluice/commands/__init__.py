"""The command line: `cli` has the command `sluice`, the other modules its larger commands."""
