"""The products pipeline on a real broker: its stock is there again after it was lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.engine.job.rebuild import Rebuild
from sluice.errors import EngineError, StateError
from sluice.plan import plan
from sluice.settings import Settings
from sluice.testing.kafka import EmbeddedKafka
from sluice.topology import load_pipeline
from tests.engine.own import held, run, send


def delivery(product: str, quantity: int) -> tuple[str, str]:
    return product, json.dumps({"productId": product, "name": product.upper(), "quantity": quantity})


def test_stock_is_there_again_after_shards_and_checkpoint_were_lost(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    products = load_pipeline(Path(__file__).parents[2] / "spark_jobs", "products")
    kafka.create_topics({"products": 3})
    brokers = json.dumps({"bootstrap.servers": kafka.bootstrap, "log_level": "0"})
    settings = Settings.read({"SLUICE_HOME": str(tmp_path), "SLUICE_KAFKA": brokers})
    send(settings, "products", *(delivery(f"p{number % 5}", number) for number in range(20)))
    run(spark, products, settings)
    stock = {f"p{number}": {"quantity": 30 + 4 * number, "deliveries": 4} for number in range(5)}
    assert held(settings, products)["products_stock"] == stock

    shutil.rmtree(settings.checkpoints)
    for shard in tmp_path.rglob("worker-*.sqlite*"):
        shard.unlink()
    with pytest.raises((EngineError, StateError), match="rebuild"):
        run(spark, products, settings)
    (job,) = plan(products).jobs
    Rebuild(spark, job, settings).run()
    assert held(settings, products)["products_stock"] == stock

    send(settings, "products", delivery("p0", 12))
    run(spark, products, settings)
    assert held(settings, products)["products_stock"]["p0"] == {"quantity": 42, "deliveries": 5}
