"""Checks the health of a service of compose.yaml: `python3 probe.py URL FIELD=VALUE`.

The status is 0 if the service works. It works if the JSON at the URL has the value in the field;
`scheduler.status` is the field `status` of `scheduler`.
"""

import json
import sys
import urllib.request


def main(url: str, condition: str) -> None:
    """Exit with the reason if the service does not work."""
    path, _, wanted = condition.partition("=")
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            value = json.load(response)
        for field in path.split("."):
            value = value[field]
    except (OSError, ValueError, LookupError, TypeError) as error:
        sys.exit(f"{url}: {error!r}")
    if str(value) != wanted:
        sys.exit(f"{url}: {path} is {value}, not {wanted}")


if __name__ == "__main__":
    main(*sys.argv[1:])
