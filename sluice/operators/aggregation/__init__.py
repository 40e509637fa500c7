"""Aggregations of the operators: functions, accumulators, windows."""
