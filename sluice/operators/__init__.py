"""Operators in plain Python, without Spark and databases: aggregations, joins, suppress, processors, lateness."""
