"""Random actions on pipelines of random operators: python -m tests.chaos [--episodes 300] [--seed 1]"""

from __future__ import annotations

import sys

from tests.chaos.world import main
from tests.support.signals import interrupt_on_sigterm

if __name__ == "__main__":
    interrupt_on_sigterm()
    sys.exit(main(sys.argv[1:]))
