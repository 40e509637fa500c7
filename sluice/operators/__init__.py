"""Operators without Spark and databases: aggregations, joins, suppress, processors, lateness."""
