#!/bin/sh
# Runs once, when PostgreSQL's volume is empty: creates the databases of ledger and shards next to Airflow's.
set -eu
for database in ledger shards; do
    createdb --username "$POSTGRES_USER" "$database"
done
