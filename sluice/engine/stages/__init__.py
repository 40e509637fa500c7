"""Runs operators in stages: makes their rows, runs the operators, and sends their results on."""
