"""Runs the model on cases with the real library's answers: python -m tests.conformance.model FILE [FILE ...]

By the rules of Kafka Streams, the model must give the library's answers. Also says in how many
cases Sluice's own rules lead to other answers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.conformance.model.answers import answer_of, computed, difference, recorded_rows, report
from tests.conformance.model.differences import KAFKA_STREAMS


def main(files: list[str]) -> int:
    failed, answers = 0, []
    for file in files:
        for line in Path(file).read_text().splitlines():
            case = json.loads(line)
            answers.append(answer_of(case))
            if why := difference(recorded_rows(case), computed(case, KAFKA_STREAMS)):
                failed += 1
                print(f"{case['id']}: {why}")
    for line in report(answers):
        print(line)
    print(f"{len(answers) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
