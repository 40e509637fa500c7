#!/bin/sh
# Run once, when PostgreSQL's volume is empty: the ledger and the shards beside Airflow's own database.
set -eu
for database in ledger shards; do
    createdb --username "$POSTGRES_USER" "$database"
done
