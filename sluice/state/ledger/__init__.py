"""The ledger: generations, published snapshots, leases, audits, and where each worker's shard is."""
