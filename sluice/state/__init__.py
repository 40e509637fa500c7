"""Published state: the ledger that says which cuts exist, and the workers' shards that hold their rows."""
