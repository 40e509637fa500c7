"""Aggregations in one stateful operator of Spark: windowing, partial aggregates, the operator itself."""
