"""Interfaces between pipelines: a pipeline's topics and stores, with the fields that others use.

A change with which a reader can no longer work is a breach of the interface. (`shared_topics` is
about pipelines that write the same topic.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sluice.values.contract_fields import FORBIDDEN, NULLABLE, OPTIONAL, UNKNOWN_FIELDS, choices_of
from sluice.values.phrases import joined, listed
from sluice.values.read_types import SIZES, differences
from sluice.values.sql_types import element_type, map_value_type, struct_fields
from sluice.values.topic_patterns import is_pattern, matches

KEY = "(key)"
"""The entry, among the fields of an output, with the expression of the records' keys."""
FORMAT = "(format)"
"""The entry with the format of the records' values, such as `JSON` or `AVRO`."""
_WHOLE = {name.upper(): size for name, size in SIZES.items()}
"""Types of whole numbers → their size."""
_TEXTS = {"STRING", "DATE", "TIMESTAMP", "BINARY"}
"""Types whose values are texts in JSON."""


class ReadableStore(NamedTuple):
    """The parts of a store that other pipelines can use."""

    value: str
    """The type of the store's values as Spark SQL DDL."""
    key: str
    """The SQL expression that computes the store's key."""
    windows: str | None = None
    """The definition of the store's windows; None for a store without windows."""


@dataclass(frozen=True)
class Interface:
    """The topics and stores of a pipeline that other pipelines can read."""

    topics: Mapping[str, Mapping[str, str]]
    """Topic → the fields of the values that the pipeline writes, with types as far as known."""
    stores: Mapping[str, ReadableStore]


@dataclass(frozen=True)
class Reader:
    """A pipeline that reads another pipeline, with the topics and stores that it reads."""

    pipeline: str
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Topic or pattern → the fields of the contract of its values (see `contract_fields`)."""
    stores: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Store of the other pipeline → the types in which it is read."""
    file: str = ""


@dataclass(frozen=True)
class Breach:
    """A topic or store in which a reader no longer finds what it uses."""

    reader: Reader
    what: str
    """The topic or store, such as `the topic totals`."""
    problems: tuple[str, ...]
    """What the reader no longer finds, such as `the field vat is missing`."""

    def __str__(self) -> str:
        return f"{self.what}: {listed(self.problems)}"


def breaches(before: Interface, now: Interface, reader: Reader) -> list[Breach]:
    """Return the breaches that a change of a pipeline causes for a reader.

    Leave out problems that existed before the change.
    """
    found: list[Breach] = []
    for topic in sorted(before.topics):
        fields = _contract(reader, topic)
        if fields is None:
            continue
        old = [*_topic_problems(before.topics[topic], fields)]
        if topic not in now.topics:
            problems = ["it is no longer written"]
        else:
            problems = [*_topic_problems(now.topics[topic], fields)]
            problems += changes_of_records(before.topics[topic], now.topics[topic])
        _add(found, Breach(reader, f"the topic {topic}", _without(problems, old)))
    for store, kinds in sorted(reader.stores.items()):
        if store not in before.stores:
            continue
        was = before.stores[store]
        for kind in kinds:
            old = [*_store_problems(was, kind)]
            if store not in now.stores:
                problems = ["it was removed"]
            else:
                problems = [*_store_problems(now.stores[store], kind)]
                problems += _changed("key", was.key, now.stores[store].key)
            _add(found, Breach(reader, f"the store {store}", _without(problems, old)))
    return found


def breaches_text(pipeline: str, found: Sequence[Breach], owners: Mapping[str, str]) -> str:
    """Return a sentence for each reader: its owner, and what it no longer finds of the pipeline.

    `owners`: reader → its owner, as far as known.
    """
    sentences: list[str] = []
    for name in readers_in(found):
        of_reader = [breach for breach in found if breach.reader.pipeline == name]
        about = [f"owner {owners[name]}"] if name in owners else []
        if of_reader[0].reader.file:
            about.append(of_reader[0].reader.file)
        whose = f" ({', '.join(about)})" if about else ""
        sentences.append(f"{name}{whose} reads {'; '.join(map(str, of_reader))}.")
    return f"The change of {pipeline} breaks what other pipelines read. {' '.join(sentences)}"


def next_step_of(pipeline: str, found: Sequence[Breach]) -> str:
    """Return the next step for a breach."""
    names = readers_in(found)
    first = f"Change {joined(names)} first, and run {'it' if len(names) == 1 else 'them'}"
    retire = f"(or, if it is no longer used: sluice retire {names[0]})"
    listing = ", ".join([f'"{name}"' for name in names])
    return (
        f"{first} {retire}. Or keep the old fields beside the new ones. Or allow the change: "
        f'Pipeline("{pipeline}", may_break=[{listing}]).'
    )


def readers_in(found: Sequence[Breach]) -> list[str]:
    """Return the names of the readers, sorted."""
    return sorted({breach.reader.pipeline for breach in found})


def _add(found: list[Breach], breach: Breach) -> None:
    if breach.problems and breach not in found:
        found.append(breach)


def _without(problems: Sequence[str], old: Sequence[str]) -> tuple[str, ...]:
    return tuple(problem for problem in problems if problem not in old)


def _contract(reader: Reader, topic: str) -> Mapping[str, str] | None:
    if topic in reader.topics:
        return reader.topics[topic]
    for pattern, fields in reader.topics.items():
        if is_pattern(pattern) and matches(pattern, topic):
            return fields
    return None


def changes_of_records(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield how the records of an output differ from before, apart from the fields of values."""
    for what, entry in (("key", KEY), ("format", FORMAT)):
        yield from _changed(what, before.get(entry, ""), now.get(entry, ""))


def _changed(what: str, before: str, now: str) -> Iterator[str]:
    # The key of an output may be unknown, for example if a function computes it.
    if before and now and before != now:
        yield f"its {what} was {before} and is {now}"


def fields_of(output: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of an output's values, without the entries for its records."""
    return {name: kind for name, kind in output.items() if name not in (KEY, FORMAT)}


def _store_problems(store: ReadableStore, read: str) -> Iterator[str]:
    if store.windows is not None:
        yield "it has windows"
    if store.value:
        yield from differences(store.value, read)


def _topic_problems(written: Mapping[str, str], contract: Mapping[str, str]) -> Iterator[str]:
    """Yield the fields of a contract that values no longer have, or have in another type."""
    of_values = fields_of(written)
    if of_values == {"value": ""}:
        return  # the results of a function, of which no type is known
    if contract.keys() == {""}:
        yield from _value_problems(of_values, contract[""])
        return
    fields = dict(_paths(of_values))
    for path, text in contract.items():
        if path.endswith(UNKNOWN_FIELDS):
            if text == FORBIDDEN:
                yield from _unknown_fields(path.removesuffix(UNKNOWN_FIELDS), fields, contract)
        elif "<" in path or not _has_known_fields(fields, path):
            # The fields of the members of a union may have any of several types.
            continue
        elif path not in fields:
            if not text.endswith(OPTIONAL):
                yield f"the field {path} is missing"
        elif not _accepts(_bare(text), fields[path]):
            yield f"the field {path} is {fields[path]}, not {_bare(text)}"


def _value_problems(fields: Mapping[str, str], text: str) -> Iterator[str]:
    """Compare values that have no fields. A reader of text or bytes takes every value."""
    kind = _bare(text)
    if kind in ("STRING", "BINARY") or not fields:
        return
    if [*fields] != ["value"]:
        yield f"its values are objects, not {kind}"
    elif not _accepts(kind, fields["value"].upper()):
        yield f"its values are {fields['value']}, not {kind}"


def _unknown_fields(
    prefix: str, fields: Mapping[str, str], contract: Mapping[str, str]
) -> Iterator[str]:
    for path in fields:
        name = path.removeprefix(prefix)
        is_direct = path.startswith(prefix) and "." not in name and "[]" not in name
        if is_direct and path not in contract:
            yield f"the field {path} is new, and the reader forbids unknown fields"


def _has_known_fields(fields: Mapping[str, str], path: str) -> bool:
    """Return whether the fields of the object with this field are known."""
    outer, _, _ = path.rpartition(".")
    if path.endswith("[]"):
        outer = path.removesuffix("[]")
    prefix = f"{outer}." if outer and not path.endswith("[]") else outer
    return any(each.startswith(prefix) and each != outer for each in fields)


def _paths(fields: Mapping[str, str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield path of a field → its type, in the form of `contract_fields`."""
    for name, kind in fields.items():
        yield from _of_type(f"{prefix}{name}", kind)


def _of_type(path: str, kind: str) -> Iterator[tuple[str, str]]:
    inner = struct_fields(kind)
    item = element_type(kind) or map_value_type(kind)
    if inner:
        yield path, "object"
        yield from _paths(inner, f"{path}.")
    elif item:
        yield path, "map" if kind[:4].upper() == "MAP<" else "list"
        yield from _of_type(f"{path}[]", item)
    else:
        yield path, kind.upper()


def _accepts(read: str, written: str) -> bool:
    """Return whether a reader of one type takes values of another type; True if this is unknown."""
    read = read.partition(" with ")[0]
    choices = choices_of(read)
    if choices is not None:
        texts = any(isinstance(choice, str) for choice in choices)
        read = "STRING" if texts else "BIGINT"
    if not written or read == written:
        return True
    if read in _WHOLE:
        return 0 < _WHOLE.get(written, 0) <= _WHOLE[read]
    if read in ("DOUBLE", "FLOAT") or read.startswith("DECIMAL"):
        is_number = written in _WHOLE or written in ("DOUBLE", "FLOAT")
        return is_number or written.startswith("DECIMAL")
    if read == "STRING":
        return written in _TEXTS
    # Other types, such as an author's own, are compared when the reader reads.
    return read not in {*_TEXTS, "BOOLEAN", "object", "list", "map"}


def _bare(text: str) -> str:
    return text.removesuffix(OPTIONAL).removesuffix(NULLABLE)
