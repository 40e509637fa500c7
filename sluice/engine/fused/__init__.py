"""Aggregates in any order of records: windowing, partial aggregates, totals in shards or in Spark's state."""
