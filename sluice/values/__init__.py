"""Values that the topology, the plan, operators and the engine share: contracts, windows, SQL text, policies."""
