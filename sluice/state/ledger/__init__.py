"""The ledger: generations, snapshots, leases, audits, and where each worker's shard is."""
