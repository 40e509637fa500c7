"""Value types and helpers shared by topology, plan, operators and engine: contracts, windows, SQL text, policies."""
