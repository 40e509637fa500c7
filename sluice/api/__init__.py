"""The REST view and the page: ASGI apps that Airflow's API server mounts behind its log-in and permissions."""
