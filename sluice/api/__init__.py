"""The REST view and the page, as apps that Airflow's API server mounts: behind its log-in, with its permissions."""
