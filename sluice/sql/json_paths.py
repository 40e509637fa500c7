"""The paths in JSON and in variants that Spark reads, such as `$.lines[0].product`."""

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
_PATH_IN_VARIANT = re.compile(
    r"""\$ (?: \.[^.\[]+ | \['[^']*'\] | \["[^"]*"\] | \[\d+\] )*""", re.ASCII | re.VERBOSE
)
_INDEX = re.compile(r"\[\s*(\d+)\]", re.ASCII)


def is_json_path(text: str) -> bool:
    """Return whether `get_json_object` reads the text as a path.

    For other texts, the function returns null or fails for every value.
    """
    return _PATH.fullmatch(text) is not None and _has_indices_below(2**63, text)


def is_variant_path(text: str) -> bool:
    """Return whether `variant_get` reads the text as a path.

    For other texts, the function fails for every value.
    """
    return _PATH_IN_VARIANT.fullmatch(text) is not None and _has_indices_below(2**31, text)


def _has_indices_below(limit: int, path: str) -> bool:
    return all(int(index) < limit for index in _INDEX.findall(path))
