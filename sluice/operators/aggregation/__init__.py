"""Aggregations that operators compute: functions, accumulators, windows."""
