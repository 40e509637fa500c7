"""Published state: the ledger that says which snapshots exist, and the workers' shards that hold their rows.

The ledger (`ledger`, `tables`, `model`) keeps `jobs`, `snapshots`, `audits`, `sources`, `leases`, `damages` and workers'
`places`. A `shard` keeps state rows, by `statements`, and states of `operators`, with `checksums`; `addresses` says where it
lies, `ranges` what part of it is asked for. `drivers` are `sqlite` and `postgres`; what lies elsewhere is `remote`.
`retention` removes what no kept snapshot can show.
"""
