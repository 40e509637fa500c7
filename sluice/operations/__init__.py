"""Rebuilds, repartitions, restores, moves, backs up and imports the whole state of a pipeline."""
