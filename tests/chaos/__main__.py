"""Random actions on pipelines of random operators: python -m tests.chaos [--episodes 300] [--seed 1]"""

from __future__ import annotations

import sys

from tests.chaos.world import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
