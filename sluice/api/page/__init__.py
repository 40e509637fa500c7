"""The page in Airflow's navigation."""
