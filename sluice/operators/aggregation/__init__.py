"""Ordered aggregations: functions, accumulators, sessions and sliding windows."""
