"""Set-up: checks of this machine, the jars for Spark and the broker, and their class archive."""
