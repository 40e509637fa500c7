"""Runs the jobs of a plan on Spark: read and decode → stateless steps → fused or ordered operators → publish."""
