from tests.support import airflow_home as airflow_home
