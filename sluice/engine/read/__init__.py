"""Kafka's records become typed columns; what cannot be decoded becomes dead letters."""
