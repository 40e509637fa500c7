"""Feed the orders pipeline from the UI: sample stores and orders, made from a seed, to Kafka."""

from airflow.providers.apache.kafka.operators.produce import ProduceToTopicOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param

from sluice.orchestration.samples import make_topics

with DAG(
    "produce_sample_orders",
    schedule=None,
    max_active_runs=1,
    description="Produce sample stores and orders to Kafka",
    doc_md=__doc__,
    tags={"sluice", "samples"},
    params={
        "count": Param(1_000, type="integer", minimum=1, maximum=100_000, description="Number of orders"),
        "stores": Param(50, type="integer", minimum=1, maximum=10_000, description="Number of stores they go to"),
        "seed": Param(7, type="integer", minimum=0, maximum=2**31, description="The same seed makes the same orders"),
    },
    default_args={"owner": "sluice"},
):
    topics = PythonOperator(task_id="topics", python_callable=make_topics)
    stores = ProduceToTopicOperator(
        task_id="stores",
        topic="stores",
        producer_function="sluice.samples.orders.store_messages",
        producer_function_kwargs={"count": "{{ params.stores }}"},
        delivery_callback="sluice.samples.topics.require_delivery",
        synchronous=False,
    )
    orders = ProduceToTopicOperator(
        task_id="orders",
        topic="orders",
        producer_function="sluice.samples.orders.messages",
        producer_function_kwargs={
            "count": "{{ params.count }}",
            "stores": "{{ params.stores }}",
            "seed": "{{ params.seed }}",
            # Later runs go on in time: orders as old as those of a run before would come after their windows closed.
            "start_s": "{{ dag_run.run_after.timestamp() }}",
        },
        delivery_callback="sluice.samples.topics.require_delivery",
        synchronous=False,
    )
    topics >> stores >> orders
