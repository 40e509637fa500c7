"""The command line: `cli` has the command `sluice` and lists the file of each command; `console` prints output."""
