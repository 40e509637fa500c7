"""Combinable aggregates: windows of records, partial aggregates in tasks, and totals in shards."""
