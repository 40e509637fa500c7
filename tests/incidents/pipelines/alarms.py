"""Copies alarms, which must be read within 15 seconds."""

from sluice import Pipeline

pipeline = Pipeline("alarms", workers=1, deadline="15 seconds")
pipeline.stream("alarms", value=str).to("alarms_read", value=str)
