"""Copies the offers that are current."""

from sluice import Pipeline

pipeline = Pipeline("offers", workers=1)
pipeline.stream("offers", value=str).to("current_offers", value=str)
