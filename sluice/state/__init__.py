"""Published state: the ledger says which snapshots exist, the workers' shards hold their rows.

`ledger` registers jobs, snapshots, leases, audits and the placement of workers. `shard` is one worker's versioned state
rows and operator states. `queries` runs one query on one shard. `model` has the values they share.
"""
