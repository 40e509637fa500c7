"""Runs operators in stages: makes their rows, runs a stage's operators, sends their results on."""
