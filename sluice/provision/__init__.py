"""Set-up: checks of this machine, the jars for Spark and the broker, and the archive of their classes."""
