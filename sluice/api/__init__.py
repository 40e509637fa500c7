"""The REST API and the page: ASGI apps in Airflow's API server, for users who are logged in."""
