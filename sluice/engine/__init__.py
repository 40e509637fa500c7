"""Runs the job of a plan on Spark: read and decode → stateless steps → fused or ordered operators → publish."""
