"""Combinable aggregates: each record's windows, partial aggregates in the reading tasks, totals in the shards."""
