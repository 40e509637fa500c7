"""Homes that earlier versions of Sluice have written.

Every later version must open them: see `test_homes.py`.
"""
