"""Published state: the ledger records the snapshots, and the workers' shards hold their rows.

`ledger` registers generations, snapshots, leases, audits and the placement of workers. `shard`
stores one worker's versioned state rows and operator states; its tables are in `shard/schema.py`.
`queries` runs a query on one shard. `remote` calls the state servers of workers on other hosts,
copies shards and refreshes standbys. `model` defines the values that they share.
"""
