"""A job's run from start to end: lease, compatibility, the query's DataFrames, replay, rebuild, restore."""
