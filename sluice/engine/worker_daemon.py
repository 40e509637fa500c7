"""Spark's Python daemon. It imports the modules that tasks need before it forks workers, which then start in ms."""

from sluice.support.startup import importing

# Workers collect garbage after every task. If collections scanned the modules, they would take longer than a task:
# two small batches of the words pipeline take 0.3 s of the workers' CPU time, and took 1.0 s.
with importing():
    # pyarrow imports pandas for the first array that is made of a list: in every worker, if the daemon has not.
    import pandas  # noqa: F401
    from pyspark.daemon import manager


if __name__ == "__main__":
    manager()
