"""Spark SQL expressions without Spark: one table of rules for authors' checks, the planner and the tasks."""
