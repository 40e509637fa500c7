"""Spark's Python daemon. It imports the modules that tasks need before it forks workers, so that they start fast."""

from sluice.support.startup import importing

# Workers collect garbage after every task. If a collection scanned the imported modules, it would
# take longer than a task: two small batches of the words pipeline would take 1.0 s of the
# workers' CPU time instead of 0.3 s.
with importing():
    # pyarrow imports pandas for the first array that is made of a list: in
    # every worker, if the daemon has not.
    import pandas  # noqa: F401
    from pyspark.daemon import manager


if __name__ == "__main__":
    manager()
