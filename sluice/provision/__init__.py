"""Set-up: checks of the machine, and the jars for Spark and the broker."""
