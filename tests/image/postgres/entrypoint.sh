#!/bin/sh
# As in the image that this one stands in for, the server that runs the initial scripts listens on a socket only.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf '%s' "$POSTGRES_PASSWORD" >/tmp/password
    initdb --username "$POSTGRES_USER" --pwfile /tmp/password --auth trust
    rm /tmp/password
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
    pg_ctl -o "-c listen_addresses= -c unix_socket_directories=/var/run/postgresql" -w start
    createdb --username "$POSTGRES_USER" "$POSTGRES_DB"
    for script in /docker-entrypoint-initdb.d/*.sh; do
        sh "$script"
    done
    pg_ctl -m fast -w stop
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
