"""Set-up: what a machine must have before anything starts, and the jars that Spark and the broker need."""
