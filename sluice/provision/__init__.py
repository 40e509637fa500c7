"""Set-up: checks of this machine, and the jars for Spark and the broker."""
