"""Published state: the ledger that says which cuts exist, and the workers' shards that hold their rows.

The ledger (`ledger`, `tables`, `model`) keeps `jobs`, `cuts`, `audits`, `sources`, `leases`, `damages` and workers'
`places`. A `shard` keeps cells, by `statements`, and states of `operators`, with `checksums`; `addresses` says where it
lies, `ranges` what part of it is asked for. `drivers` are `sqlite` and `postgres`; what lies elsewhere is `remote`.
`retention` removes what no kept cut can show.
"""
