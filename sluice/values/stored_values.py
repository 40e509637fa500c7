"""Stores values as Structs if msgspec and SQL cannot hold them as declared.

A pydantic model, and a Struct, dataclass or TypedDict with fields of type Any, become a Struct with
the same fields. A value of type Any becomes the text of its JSON, which stays as it is in SQL,
states and stores. The text is put back into the JSON where values leave Sluice:
`values.json_text.plain_json`.

pydantic validates models where they come into a pipeline: from a topic, and as results of an
author's functions. For functions, models are built from Structs without validation: a validator may
change a value, and must not change the value a second time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cache, partial
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec

from sluice.errors import TopologyError
from sluice.values import epochs, pydantic_models
from sluice.values.json_limits import LONGEST_STRING, require_all_finite
from sluice.values.json_text import JSON_FIELD, plain_json
from sluice.values.pydantic_models import ModelStructs, is_model


class JsonText(msgspec.Struct, frozen=True):
    """A value of type Any."""

    text: str = msgspec.field(name=JSON_FIELD)
    """The value's JSON. For a value from a topic, this is the topic's text, unchanged."""


class Stored(msgspec.Struct):
    """Base class of the Structs that hold values of an author's class."""

    __made_for__: ClassVar[Any]
    __fixed__: ClassVar[Mapping[str, Any]] = {}
    """The model's field that is the Struct's tag, with its value; empty for a Struct without a
    tag."""


class _AnyValue(type):
    """Metaclass of `_FROM_ANY`.

    Every object counts as an instance, so msgspec accepts the results of `_json_text`.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return True


_FROM_ANY = _AnyValue("AnyValue", (), {})
"""Replaces Any in the types for `msgspec.convert`, which calls `_json_text` for each value of this
type."""


def stored_type(kind: Any) -> Any:
    """Return the type in which values are stored: `kind` itself if they are stored unchanged.

    Raises TopologyError if a model has parts that cannot be stored.
    """
    try:
        hash(kind)
    except TypeError:
        raise TopologyError(
            f"{kind} cannot be the type of stored values.",
            next_step="Declare a class or a union of classes, such as Opened | Paid, without "
            "Annotated[...].",
        ) from None
    return _replaced_type(kind, JsonText | None)


def is_converted(kind: Any) -> bool:
    """Return whether values of this type are converted to another type when they are stored."""
    return bool(stored_type(kind) != kind)


def has_models(kind: Any) -> bool:
    """Return whether values of this type may contain models."""
    return bool(models_within(kind))


def models_within(kind: Any) -> list[Any]:
    """Return the models that values of this type may contain."""
    models: dict[Any, None] = {}
    for part in filter(_is_stored, _parts_of_values(stored_type(kind))):
        if is_model(part.__made_for__):
            models[part.__made_for__] = None
    return [*models]


def topic_decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return the function that decodes a topic's JSON to stored values."""
    if has_models(kind):
        has_decimals = Decimal in _parts_of_values(stored_type(kind))
        validated = pydantic_models.json_validator(kind, has_decimals=has_decimals)
        kept = _replaced_type(kind, _FROM_ANY)
        return lambda data: msgspec.convert(validated(data), kept, dec_hook=_json_text)
    if not is_converted(kind):
        return epochs.decoder(kind)
    # msgspec.Raw keeps the text of JSON.
    decode, converted = (
        epochs.decoder(_replaced_type(kind, msgspec.Raw)),
        _replaced_type(kind, _FROM_ANY),
    )
    return lambda data: msgspec.convert(
        decode(data), converted, from_attributes=True, dec_hook=_json_text
    )


@cache
def storer(kind: Any) -> Callable[[Any], Any]:
    """Return the function that converts values of the type `kind` to their stored type.

    It raises ValidationError for a value of another type.
    """
    converted = _replaced_type(kind, _FROM_ANY)
    # `msgspec.convert` finds fields by their names in JSON and unions' members by their tags. Plain
    # data has both.
    if has_models(kind):
        plain = pydantic_models.plain_data(kind)
    else:
        # `kind` contains no models, so only a value of type Any can contain one.
        plain = partial(msgspec.to_builtins, builtin_types=_EXACT, enc_hook=plain_model)
    return lambda value: msgspec.convert(plain(value), converted, dec_hook=_json_text)


_EXACT = (bytes, date, datetime, Decimal)
"""Types that `to_builtins` leaves as they are."""
_encode = msgspec.json.Encoder(decimal_format="number").encode


def _json_text(_: Any, value: Any) -> JsonText | None:
    """Return the stored value for a value of type Any, as msgspec's `dec_hook`."""
    if isinstance(value, msgspec.Raw):
        text = bytes(value).decode()
        try:
            # Decode here, to reject numbers that functions and queries could not decode later.
            _decode_any(value)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from None
    else:
        text = _encode(value).decode()
        # For NaN and infinity, msgspec writes null for a float, and the name for a Decimal.
        if "null" in text or "NaN" in text or "Infinity" in text:
            require_all_finite(value)
    if len(text) > LONGEST_STRING:
        raise ValueError(
            f"JSON of {len(text):,} characters; at most {LONGEST_STRING:,} are possible"
        )
    if text == "null":
        return None
    return JsonText(text)


def encode_model(value: Any) -> Any:
    """Return the Struct for a model, for encoders of msgspec.

    Raises TypeError for a value of another type.
    """
    kind: Any = type(value)
    if not is_model(kind):
        raise TypeError(f"Encoding objects of type {kind.__name__} is unsupported")
    return storer(kind)(value)


def plain_model(value: Any) -> Any:
    """Return a model as plain data, including its fields of type Any, for encoders of msgspec.

    Raises TypeError for a value of another type.
    """
    kind: Any = type(value)
    if not is_model(kind):
        raise TypeError(f"Encoding objects of type {kind.__name__} is unsupported")
    return _plain_data(kind)(value)


@cache
def _plain_data(model: Any) -> Callable[[Any], Any]:
    # Check the model: `stored_type` raises TopologyError if the model's JSON differs from its
    # fields.
    stored_type(model)
    return pydantic_models.plain_data(model)


def value_decoder(kind: Any) -> Callable[[str | msgspec.Raw], Any]:
    """Return the function that decodes JSON that Sluice has written, for an author's functions."""
    if kind is Any:
        return _decode_plain
    decode = msgspec.json.Decoder(stored_type(kind)).decode
    if is_converted(kind):
        return lambda text: author_value(decode(text))
    return decode


def _decode_plain(json: str | msgspec.Raw) -> Any:
    """Decode Sluice's JSON to plain data, with values of type Any in place of their JSON texts."""
    text = json if isinstance(json, str) else bytes(json).decode()
    return _decode_any(plain_json(text))


_decode_any = msgspec.json.Decoder(Any).decode


def author_value(value: Any) -> Any:
    """Convert a stored value to the type that the author has declared."""
    if isinstance(value, JsonText):
        return _decode_any(value.text)
    if isinstance(value, Stored):
        return _instance(value)
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(map(author_value, value))
    if isinstance(value, dict):
        return {name: author_value(inner) for name, inner in value.items()}
    return value


def _instance(value: Stored) -> Any:
    """Return an instance of the author's class."""
    kind = value.__made_for__
    fields = {name: author_value(getattr(value, name)) for name in value.__struct_fields__}
    if is_model(kind):
        return pydantic_models.instance(kind, {**fields, **value.__fixed__})
    if is_typeddict(kind):
        return fields
    if issubclass(kind, msgspec.Struct):
        return kind(**fields)
    # Make the instance without `__init__`, as msgspec does, because not every `__init__` takes all
    # fields.
    instance = object.__new__(kind)
    for name, field in fields.items():
        object.__setattr__(instance, name, field)
    if hasattr(instance, "__post_init__"):
        instance.__post_init__()
    return instance


# -- The Structs


@cache
def _replaced_type(kind: Any, any_type: Any) -> Any:
    """Return the type with Structs for models and for classes with fields of type Any.

    Any is replaced by `any_type`. Returns `kind` itself if there is nothing to replace.
    """
    return _Replacing(any_type, ()).replaced(kind, getattr(kind, "__name__", str(kind)))


@dataclasses.dataclass(frozen=True)
class _Replacing:
    any_type: Any
    within: tuple[Any, ...]
    """The classes whose fields are being replaced, to find a class that contains itself."""

    def replaced(self, kind: Any, where: str) -> Any:
        if kind is Any:
            return self.any_type
        if is_model(kind):
            return self._model_structs.struct(kind, where)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is None:
            return self._class(kind, where)
        if origin is Literal:
            return kind
        if origin in (Union, UnionType):
            # A union with Any allows every value, as Any does.
            if Any in arguments:
                return self.any_type
            return (
                self._model_structs.union(arguments, where, lambda part: self.replaced(part, where))
                or kind
            )
        if origin is Annotated:
            arguments, marks = arguments[:1], arguments[1:]
            inner = self.replaced(arguments[0], where)
            if inner is arguments[0]:
                return kind
            return Annotated[(inner, *marks)]
        replaced = epochs.of_types(lambda part: self.replaced(part, where), arguments)
        if all(new is old for new, old in zip(replaced, arguments, strict=True)):
            return kind
        return origin[replaced]

    @property
    def _model_structs(self) -> ModelStructs:
        return ModelStructs(Stored, self.replaced)

    def _class(self, kind: Any, where: str) -> Any:
        """Return the Struct for a class with fields of type Any.

        Return the class itself if it has none.
        """
        _refuse_models_in(kind, where)
        # Leave a class that contains itself unchanged: `contracts.sql_type` will raise an error for
        # it.
        if kind in self.within:
            return kind
        inner = _Replacing(self.any_type, (*self.within, kind))
        annotations = _annotations(kind)
        replaced: dict[str, Any] = {}
        optional: list[str] = []
        is_same = True
        for name, declared in annotations.items():
            part = unmarked(declared)
            replaced[name] = inner.replaced(part, f"{where}.{name}")
            is_same = is_same and replaced[name] is part
            if _is_optional(kind, name, declared):
                optional.append(name)
        if is_same:
            return kind
        for name in replaced:
            if not name.isidentifier():
                raise TopologyError(
                    f"{where}: the class has a field of type Any, so the field {name!r} must have "
                    "a valid Python name.",
                    next_step="Declare the fields of type Any in a separate class.",
                )
        return _struct(kind, replaced, optional)


def _is_optional(kind: Any, name: str, declared: Any) -> bool:
    """Return whether a TypedDict may omit the field."""
    if not is_typeddict(kind) or get_origin(declared) is Required:
        return False
    return get_origin(declared) is NotRequired or name not in kind.__required_keys__


def _struct(kind: Any, types: Mapping[str, Any], optional: Sequence[str]) -> Any:
    """Return the Struct for a class, with fields of these types.

    A TypedDict may omit the `optional` fields.
    """
    config: dict[str, Any] = {}
    namespace: dict[str, Any] = {"__made_for__": kind}
    fields: list[tuple[str, Any, Any]] = []
    if is_typeddict(kind):
        for name, part in types.items():
            # A field that is left out is None in Python functions.
            if name in optional:
                fields.append((name, part | None, msgspec.field(default=None)))
            else:
                fields.append((name, part, msgspec.field()))
    elif dataclasses.is_dataclass(kind):
        for of_class in dataclasses.fields(kind):
            default = epochs.default_of(of_class)
            fields.append((of_class.name, types[of_class.name], default))
    else:
        for field in msgspec.structs.fields(kind):
            fields.append((field.name, types[field.name], epochs.field_of(field)))
        of_struct = kind.__struct_config__
        config = {"forbid_unknown_fields": of_struct.forbid_unknown_fields}
        if of_struct.tag_field is not None:
            config |= {"tag": of_struct.tag, "tag_field": of_struct.tag_field}
            # By this attribute, `msgspec.convert` finds out which member of a union an object is.
            namespace[of_struct.tag_field] = of_struct.tag
    struct: Any = msgspec.defstruct(
        kind.__name__,
        fields,
        bases=(Stored,),
        module=kind.__module__,
        namespace=namespace,
        kw_only=True,
        **config,
    )
    # By this name, `require_importable` recognizes a class that is defined in a function.
    struct.__qualname__ = kind.__qualname__
    return struct


def _refuse_models_in(kind: Any, where: str) -> None:
    """Raise TopologyError if a class that is not a model has a field with models.

    The class is a Struct, a dataclass or a TypedDict. Also refuse dataclasses of pydantic.
    """
    if dataclasses.is_dataclass(kind) and hasattr(kind, "__pydantic_validator__"):
        raise TopologyError(
            f"{where} is a dataclass of pydantic.",
            next_step="Declare it as a pydantic.BaseModel, or as a dataclass of Python.",
        )
    for name, part in _annotations(kind).items():
        if any(map(is_model, _parts(part))):
            raise TopologyError(
                f"{where}.{name} is a pydantic model, but {kind.__name__} is not: only a pydantic "
                "model can have a pydantic model as a field.",
                next_step=f"Declare {kind.__name__} as a pydantic.BaseModel.",
            )


def _annotations(kind: Any) -> dict[str, Any]:
    """Return the annotations of a class with fields; empty for other types."""
    try:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            # A Struct that is encoded as an array has no field names: `contracts.sql_type` will
            # raise an error for it.
            if kind.__struct_config__.array_like:
                return {}
            return {field.name: field.type for field in msgspec.structs.fields(kind)}
        if dataclasses.is_dataclass(kind) or is_typeddict(kind):
            return get_type_hints(kind, include_extras=True)
    except (TypeError, NameError):
        pass  # msgspec will raise a clearer error for these annotations.
    return {}


def _parts(kind: Any) -> Iterator[Any]:
    yield kind
    for part in get_args(kind):
        yield from _parts(part)


def _parts_of_values(kind: Any) -> Iterator[Any]:
    """Yield a stored type and the types within it, including the types of Structs' fields."""
    for part in _parts(kind):
        yield part
        if _is_stored(part):
            for field in msgspec.structs.fields(part):
                yield from _parts_of_values(field.type)


def _is_stored(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Stored)


def unmarked(declared: Any) -> Any:
    """Return the type of a TypedDict's field, without Required or NotRequired around it."""
    if get_origin(declared) in (Required, NotRequired):
        return get_args(declared)[0]
    return declared
