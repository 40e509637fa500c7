"""What spark-submit starts: `run.py PIPELINE [JOB ...]` reads what there is, publishes it, and ends."""

import sys

from sluice.engine.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
