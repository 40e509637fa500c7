"""The ledger: generations, published snapshots, leases, audits, and the places of shards."""
