"""Combinable aggregates: the windows of records, partial aggregates in the tasks that read, totals in the shards."""
