"""The paths of `get_json_object` that Spark reads, such as `$.lines[0].product`."""

from __future__ import annotations

import re

_STEPS = r"""
    \s*+ \.\*                  # every value of an object: .*
    | \s*+ \['\*'\]            # the same: ['*']
    | \. \s*+ [^.\[]+          # a field: .name
    | \s*+ \['\s*+ [^']++ '\]  # a field: ['name']
    | \[ (?: \*                # every element: [*]
        | \s*+ (\d+) ) \]      # an element: [0]
"""
_PATH = re.compile(rf"\$ (?>{_STEPS})*+ \s*", re.ASCII | re.VERBOSE)
_INDEX = re.compile(r"\[\s*(\d+)\]")
_LARGEST_INDEX = 2**63 - 1


def is_json_path(text: str) -> bool:
    """Whether Spark reads the text as a path. For other texts, `get_json_object` is null or fails for every value."""
    return _PATH.fullmatch(text) is not None and all(
        int(index) <= _LARGEST_INDEX for index in _INDEX.findall(text)
    )
