from tests import airflow_home as airflow_home
