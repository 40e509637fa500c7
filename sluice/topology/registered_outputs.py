"""Checks that the values of an output fit the format whose schema is in a registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import inspect

from sluice.errors import TopologyError
from sluice.topology.serdes import Serde
from sluice.values import contracts
from sluice.values.contracts import ObjectType, type_info
from sluice.values.registry_formats import RegistryFormat

_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")


def require_writable(
    where: str, serde: Serde[Any], fields: Mapping[str, str], *, is_scalar: bool
) -> None:
    """Raise TopologyError if values with these fields certainly do not fit the contract."""
    values = serde.encode
    if not isinstance(values, RegistryFormat) or values.is_chosen:
        return
    if values.problem:
        raise TopologyError(f"{where}: {values.problem}", next_step=values.advice)
    contract: Any = serde.contract
    kind = type_info(contract)
    if is_scalar or not fields or not isinstance(kind, ObjectType):
        return
    declared = contracts.fields(serde.contract)
    missing: list[str] = []
    for each in kind.fields:
        if each.encode_name not in fields and each.required and not _may_be_null(each.type):
            missing.append(each.encode_name)
    if missing:
        raise TopologyError(
            f"{where}: the values have no {', '.join(missing)}, which {serde.name} needs.",
            next_step=f"Their fields: {', '.join(fields)}.",
        )
    if more := [name for name in fields if name not in declared]:
        raise TopologyError(
            f"{where}: {serde.name} has no {', '.join(more)}, which the values have.",
            next_step="Leave the fields out with select(...), or add them to the class.",
        )
    for name, found in fields.items():
        if found and _family(found) != _family(declared[name]):
            raise TopologyError(
                f"{where}: {name} is {found}, but {declared[name]} in {serde.name}.",
                next_step="Cast it with select(...), or change the class.",
            )


def _may_be_null(kind: inspect.Type) -> bool:
    members = kind.types if isinstance(kind, inspect.UnionType) else ()
    return any(isinstance(member, inspect.NoneType) for member in members)


def _family(sql: str) -> str:
    bare = sql.partition("(")[0].partition("<")[0].upper().strip()
    return "number" if bare in _NUMBERS else bare
