"""The program that `sluice run` starts: it starts Spark's JVM, and is the driver itself.

Starting the JVM takes a second, and so do the driver's imports. So this program starts the JVM
before it imports anything of Sluice, and both go on side by side.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Start the JVM with the arguments in PYSPARK_SUBMIT_ARGS, and run the driver. Returns the driver's exit status."""
    spark_submit = str(Path(sys.executable).parent / "spark-submit")
    command = [spark_submit, *shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])]
    # The JVM ends when its standard input ends, that is, together with this process.
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    from sluice.support.startup import importing

    with importing():
        from sluice.driver import main as run_driver
        from sluice.engine.starting_jvm import StartingJvm
        from sluice.spark_submit import CONNECTION

    return run_driver(sys.argv[1:], StartingJvm(process, Path(os.environ[CONNECTION])))


if __name__ == "__main__":
    sys.exit(main())
