"""Runs operators in stages: the task that makes their rows, a stage, and the run of one operator."""
