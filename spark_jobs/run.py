"""What spark-submit starts: `run.py PIPELINE` reads what there is for the pipeline's jobs, publishes it, and ends."""

import sys

from sluice.engine.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
