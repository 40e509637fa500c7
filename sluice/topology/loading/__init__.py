"""Finds the pipelines in a folder.

A separate process imports each file first, and then the calling process does.
"""
