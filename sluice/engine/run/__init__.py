"""The run of a job: lease, compatibility, the query's DataFrames, replay."""
