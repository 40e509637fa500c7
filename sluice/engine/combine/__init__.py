"""Combinable aggregates: windows and lateness, partial aggregates in the reading tasks, totals in the shards."""
