"""Aggregations that Spark's own state keeps: windowing, partial aggregates, one stateful operator."""
