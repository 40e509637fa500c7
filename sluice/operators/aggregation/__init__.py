"""Ordered aggregations: functions, accumulators, windows."""
