"""Generate docs/licences.md: the licences of everything that an installation brings.

`make docs` runs it; a test fails if the page is out of date or if a licence is new.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = Path(__file__).parent / "licences.md"
_SPELLINGS = {
    "3-clause bsd license": "BSD",
    "apache software license": "Apache-2.0",
    "bsd license": "BSD",
    "bsd-2-clause": "BSD",
    "bsd-3-clause": "BSD",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}
_TITLE = """\
# Licences

Sluice itself is under the Apache License 2.0. `pip install "sluice-streams[airflow]"` also installs
the distributions below, under the licences that their metadata state. `make docs` generates the
list. A test fails if a distribution has a licence that is not in the list. The tools for developing
Sluice are not listed.

The page of Sluice in Airflow has the files of two JavaScript libraries, dagre and uPlot, both under
the MIT licence. The licences are beside the files, in `sluice/api/page/static/vendor`.

Set-up also downloads the jars of `sluice/provision/jars.lock`. Pipelines with Delta tables need
Delta Lake, which is under Apache-2.0. Tests and the demo need a Kafka broker.

The tests do not look for known vulnerabilities of these versions, because such a search needs an
online database. To search for vulnerabilities, run `pip-audit -r requirements.txt`.
"""


def installed(extra: str) -> dict[str, Distribution]:
    """Return, by name, all distributions that an extra of Sluice requires, directly or not."""
    found: dict[str, Distribution] = {}
    to_visit = [("sluice-streams", frozenset({extra}))]
    visited: set[tuple[str, frozenset[str]]] = set()
    while to_visit:
        name, extras = to_visit.pop()
        if (name, extras) in visited:
            continue
        visited.add((name, extras))
        found[name] = distribution(name)
        for text in found[name].requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": each}) for each in (*extras, "")):
                to_visit.append(
                    (canonicalize_name(requirement.name), frozenset(requirement.extras))
                )
    del found["sluice-streams"]
    return found


def licence(of: Distribution) -> str:
    """Return the licence's short name, from the metadata's expression or from its classifiers."""
    metadata = of.metadata.json
    if expression := metadata.get("license_expression"):
        names = [str(expression)]
    else:
        classifiers = [
            text for text in metadata.get("classifier", []) if text.startswith("License :: ")
        ]
        names = [
            text.rsplit(" :: ", 1)[1] for text in classifiers if text != "License :: OSI Approved"
        ]
        names = names or str(metadata.get("license", "unknown")).splitlines()[:1]
    return " or ".join(sorted({_SPELLINGS.get(name.lower(), name) for name in names}))


def page() -> str:
    """Return the page, as Markdown."""
    by_licence: dict[str, list[str]] = defaultdict(list)
    for name, of in installed("airflow").items():
        by_licence[licence(of)].append(name)
    return (
        "\n".join([_TITLE, "| licence | distributions |", "| --- | --- |", *_rows(by_licence)])
        + "\n"
    )


def _rows(by_licence: dict[str, list[str]]) -> Iterator[str]:
    for name, distributions in sorted(
        by_licence.items(), key=lambda item: (-len(item[1]), item[0])
    ):
        yield f"| {name} | {', '.join(sorted(distributions))} |"


if __name__ == "__main__":
    PAGE.write_text(page())
