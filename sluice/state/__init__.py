"""Published state: the ledger records which snapshots exist, and the workers' shards hold their rows.

`ledger` registers generations, snapshots, leases, audits and the placement of workers. `shard` stores one worker's
versioned state rows and operator states. `queries` runs a query on one shard. `model` defines the values that they
share.
"""
