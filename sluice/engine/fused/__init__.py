"""Runs aggregations in one stateful Spark operator: windowing, partial aggregates, the operator itself."""
