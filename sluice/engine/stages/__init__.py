"""Runs operators in stages: makes rows for operators, runs the operators of a stage, and sends their results on."""
