"""A job's run from start to end: the lease, compatibility checks, Spark's dataframes, rebuild and replay."""
