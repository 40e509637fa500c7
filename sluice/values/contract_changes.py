"""Compares two contracts for the same topic, and lists the effects on its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sluice.values.contract_fields import FORBIDDEN, NULLABLE, OPTIONAL, UNKNOWN_FIELDS, choices_of


@dataclass(frozen=True)
class ContractChange:
    """One change of a contract."""

    text: str
    """A description of the change, such as `the field vat is new and required`."""
    rejected: str
    """The records that are rejected because of the change, such as `records without it`; empty if
    none."""


def contract_changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[ContractChange]:
    """Compare the fields, in the order of their paths (see `contract_fields`)."""
    for path in sorted(before.keys() | now.keys()):
        # If an object was added or removed, list only the object, not its fields.
        if _outer(path) and ((_outer(path) in before) != (_outer(path) in now)):
            continue
        if (change := _change(path, before, now)) is not None:
            yield change


def _change(path: str, before: Mapping[str, str], now: Mapping[str, str]) -> ContractChange | None:
    old, new = before.get(path), now.get(path)
    if old == new:
        return None
    if path.endswith(UNKNOWN_FIELDS):
        of_object = path.removesuffix(UNKNOWN_FIELDS).rstrip(".") or "the value"
        if new == FORBIDDEN:
            text = f"{of_object} forbids unknown fields"
            return ContractChange(text, "records with other fields")
        return ContractChange(f"{of_object} allows unknown fields", "")
    if path.endswith(">"):
        member = path.rpartition("<")[2].rstrip(">")
        if new is None:
            text = f"values of {member} are no longer declared"
            return ContractChange(text, f"records with a {member}")
        return ContractChange(f"values of {member} are new", "")
    name = "the value"
    if path:
        name = f"the field {path}"
    if new is None:
        outer = path.rpartition(".")[0]
        forbids = UNKNOWN_FIELDS
        if outer:
            forbids = f"{outer}.{UNKNOWN_FIELDS}"
        rejected = ""
        if now.get(forbids) == FORBIDDEN:
            rejected = "records with it"
        return ContractChange(f"{name} was removed", rejected)
    if old is None:
        if new.endswith(OPTIONAL):
            return ContractChange(f"{name} is new and optional", "")
        return ContractChange(f"{name} is new and required", "records without it")
    return ContractChange(f"{name} was {old} and is {new}", _rejected(old, new))


def _rejected(old: str, new: str) -> str:
    """Return the records that are rejected because a field has another type."""
    rejected: list[str] = []
    if _bare(old) != _bare(new) and not _has_more_choices(_bare(old), _bare(new)):
        rejected.append("records whose value does not fit")
    if old.endswith(OPTIONAL) and not new.endswith(OPTIONAL):
        rejected.append("records without it")
    if _is_nullable(old) and not _is_nullable(new):
        rejected.append("records with null")
    return " and ".join(rejected)


def _has_more_choices(old: str, new: str) -> bool:
    choices, later = choices_of(old), choices_of(new)
    return choices is not None and later is not None and choices <= later


def _is_nullable(text: str) -> bool:
    return text.removesuffix(OPTIONAL).endswith(NULLABLE)


def _bare(text: str) -> str:
    return text.removesuffix(OPTIONAL).removesuffix(NULLABLE)


def _outer(path: str) -> str:
    """Return the path of the object, list or union member that contains a field, if any."""
    if path.endswith("[]"):
        return path.removesuffix("[]")
    if path.endswith(">"):
        return path.rpartition("<")[0]
    return path.rpartition(".")[0]
