"""Airflow's log-in, and which pipelines a user may read and edit."""
