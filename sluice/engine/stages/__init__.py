"""Runs operators in stages: makes their rows, runs the operators, and passes their results on."""
