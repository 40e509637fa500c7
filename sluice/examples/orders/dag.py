"""A DAG that sends sample stores and orders to the orders pipeline, generated from a seed."""

from __future__ import annotations

from airflow.providers.apache.kafka.operators.produce import ProduceToTopicOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param

from sluice.airflow_connections import KAFKA, kafka_config


def create_topics() -> None:
    """Create missing topics of the orders pipeline."""
    from sluice.examples.orders.sample_topics import create_order_topics

    for topic in create_order_topics(kafka_config(KAFKA)):
        print(f"created topic {topic}")


with DAG(
    "produce_sample_orders",
    schedule=None,
    max_active_runs=1,
    description="Produce sample stores and orders to Kafka",
    doc_md=__doc__,
    tags={"sluice", "samples"},
    params={
        "count": Param(
            1_000, type="integer", minimum=1, maximum=100_000, description="Number of orders"
        ),
        "stores": Param(
            50, type="integer", minimum=1, maximum=10_000, description="Number of stores"
        ),
        "seed": Param(
            7, type="integer", minimum=0, maximum=2**31, description="Random seed of the orders"
        ),
    },
    default_args={"owner": "sluice"},
) as dag:
    topics = PythonOperator(task_id="topics", python_callable=create_topics)
    stores = ProduceToTopicOperator(
        task_id="stores",
        topic="stores",
        producer_function="sluice.examples.orders.records.store_messages",
        producer_function_kwargs={"count": "{{ params.stores }}"},
        delivery_callback="sluice.kafka.topics.require_delivery",
        synchronous=False,
    )
    orders = ProduceToTopicOperator(
        task_id="orders",
        topic="orders",
        producer_function="sluice.examples.orders.records.messages",
        producer_function_kwargs={
            "count": "{{ params.count }}",
            "stores": "{{ params.stores }}",
            "seed": "{{ params.seed }}",
            # The times of each run's orders begin when the run begins. Orders with the times of an
            # earlier run would be late, because their windows have closed.
            "start_s": "{{ dag_run.run_after.timestamp() }}",
        },
        delivery_callback="sluice.kafka.topics.require_delivery",
        synchronous=False,
    )
    topics >> stores >> orders
