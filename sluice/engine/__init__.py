"""Runs the jobs of a plan on Spark: read → decode → place in time → fuse → publish."""
