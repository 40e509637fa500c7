"""Shared value types and helpers: contracts, windows, SQL text and policies.

Topology, plan, operators and engine use them.
"""
