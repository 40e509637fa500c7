"""Uses pydantic models as contracts: checks and converts them, and validates values.

This module imports pydantic only for types that contain models.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import partial, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from sluice.errors import TopologyError
from sluice.values.epochs import of_types, unit_of
from sluice.values.phrases import counted

_MOST_ERRORS = 3
"""The largest number of pydantic's errors that the error message for one value lists."""
_LONG_NUMBER = re.compile(
    rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)', re.DOTALL
)
"""Matches numbers with a point or an exponent. Also matches whole strings, because digits in a
string must not be mistaken for a number."""

_MARK = b"00000000"
"""The beginning of each string that `_with_exact_numbers` writes in place of a number."""


def is_model(kind: Any) -> bool:
    """Return whether `kind` is a class of pydantic models."""
    # If pydantic is not imported, no class can be a model.
    pydantic = sys.modules.get("pydantic.main")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def validator(kind: Any) -> Callable[[Any], Any]:
    """Return a function that validates a value, such as a dict for a model, as pydantic does."""
    validate = _adapter(kind).validate_python
    return lambda value: _validated(validate, value)


def json_validator(kind: Any, *, has_decimals: bool) -> Callable[[bytes], Any]:
    """Return a function that validates JSON as pydantic does.

    The function returns plain data with the names of the JSON.
    """
    validate, plain = _adapter(kind).validate_json, plain_data(kind)
    if not has_decimals:
        return lambda data: plain(_validated(validate, data))

    def validated_exactly(data: bytes) -> Any:
        exact, numbers = _with_exact_numbers(data)
        value = plain(_validated(validate, exact))
        if numbers:
            return _with_numbers(value, numbers)
        return value

    return validated_exactly


def _adapter(kind: Any) -> Any:
    from pydantic import Discriminator, TypeAdapter

    models = [*filter(is_model, get_args(kind))]
    if get_origin(kind) in (Union, UnionType) and len(models) > 1:
        # Without a discriminator, an error would list problems with all members of the union.
        kind = Annotated[kind, Discriminator(_tag_of(models, str(kind)))]
    return TypeAdapter(kind)


def _validated(validate: Callable[[Any], Any], value: Any) -> Any:
    """Return the validated value. Raises errors of msgspec, as for other contracts."""
    from pydantic import ValidationError

    try:
        return validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
    if problems[0]["type"] == "json_invalid":
        # msgspec raises the same error as for other contracts.
        msgspec.json.decode(value)
        raise msgspec.DecodeError(problems[0]["msg"])
    texts: list[str] = []
    for problem in problems[:_MOST_ERRORS]:
        texts.append(f"{_path(problem['loc'])}: {problem['msg']}")
    if others := len(problems) - len(texts):
        texts.append(f"and {counted(others, 'other error')}")
    raise msgspec.ValidationError("; ".join(texts))


def _path(location: Sequence[str | int]) -> str:
    path = "$"
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


def _with_exact_numbers(data: bytes) -> tuple[bytes, dict[str, float]]:
    """Return the JSON with strings for numbers that a float cannot hold, and the numbers by string.

    For a field of type Decimal, pydantic converts the string to an exact Decimal. In a field of
    another type, the string stays, and `_with_numbers` puts the number back.
    """
    numbers: dict[str, float] = {}

    def exact(match: re.Match[bytes]) -> bytes:
        text = match.group()
        # A float holds every number of up to 15 digits.
        if (
            len(text) <= 16
            or text.startswith(b'"')
            or Decimal(repr(float(text))) == Decimal(text.decode())
        ):
            return text
        # A JSON number never begins with these zeros, and hardly any string does.
        sign, digits = b"", text
        if text.startswith(b"-"):
            sign, digits = b"-", text[1:]
        marked = sign + _MARK + digits
        numbers[marked.decode()] = float(text)
        return b'"%b"' % marked

    return _LONG_NUMBER.sub(exact, data), numbers


def _with_numbers(value: Any, numbers: Mapping[str, float]) -> Any:
    """Return the plain data with numbers in place of the strings of `_with_exact_numbers`."""
    if isinstance(value, str):
        return numbers.get(value, value)
    if isinstance(value, dict):
        return {name: _with_numbers(part, numbers) for name, part in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value)(_with_numbers(part, numbers) for part in value)
    return value


def plain_data(kind: Any) -> Callable[[Any], Any]:
    """Return a function that converts values with models to plain data with the JSON's names."""
    return partial(_adapter(kind).dump_python, by_alias=True, warnings=False)


def instance(model: Any, fields: Mapping[str, Any]) -> Any:
    """Return an instance of a model with these fields, built without the validators."""
    made = model.__new__(model)
    # `__setstate__` sets the fields without calling validators, as in unpickling.
    made.__setstate__(
        {
            "__dict__": {name: fields[name] for name in model.model_fields},
            "__pydantic_extra__": None,
            "__pydantic_fields_set__": {*fields},
            "__pydantic_private__": None,
        }
    )
    # `model_post_init` also makes the private attributes.
    if model.__pydantic_post_init__:
        made.model_post_init(None)
    return made


# -- The Structs for models


_DEEPEST = 40
"""How deep models may be nested. A model that exceeds this limit is assumed to contain itself."""


@dataclass(frozen=True)
class ModelStructs:
    """Makes the Structs that store models."""

    base: type[msgspec.Struct]
    """The base class of the Structs. Their attribute `__made_for__` is the model."""
    replace: Callable[[Any, str], Any]
    """Takes a type that is not a model, and where it is declared. Returns the type in which its
    values are stored."""

    def struct(self, model: Any, where: str, tag: str | None = None) -> type[msgspec.Struct]:
        """Return the Struct for a model.

        If `tag` names a field of the model, the field's value becomes the Struct's tag.
        """
        if where.count(".") > _DEEPEST:
            raise TopologyError(
                f"{where[:100]}...: a model that contains itself has no Spark SQL type.",
                next_step="Declare the field as Any, or put the nested objects into one flat list.",
            )
        _refuse_unstorable(model, where)
        fields = []
        for name, field in model.model_fields.items():
            if name != tag:
                kind = self._field_type(field.annotation, [field], f"{where}.{name}", model)
                fields.append((name, kind, msgspec.field(name=_json_name(name, field))))
        _require_different_names(model, where)
        namespace: dict[str, Any] = {"__made_for__": model}
        config: dict[str, Any] = {}
        if tag is not None:
            tag_field = model.model_fields[tag]
            value = _only_choice(tag_field)
            if value is None:
                raise TopologyError(
                    f"{where}: {model.__name__}.{tag} tells models of a union apart, but is not a "
                    "single text.",
                    next_step=f"Declare it as {tag}: Literal['...'].",
                )
            namespace["__fixed__"] = {tag: value}
            forbids = model.model_config.get("extra") == "forbid"
            config = {
                "tag": value,
                "tag_field": _json_name(tag, tag_field),
                "forbid_unknown_fields": forbids,
            }
        struct: Any = msgspec.defstruct(
            model.__name__,
            fields,
            bases=(self.base,),
            module=model.__module__,
            namespace=namespace,
            kw_only=True,
            **config,
        )
        # By this name, `require_importable` recognizes a model that is defined in a function.
        struct.__qualname__ = model.__qualname__
        return struct  # type: ignore[no-any-return]

    def union(
        self,
        members: Sequence[Any],
        where: str,
        replace: Callable[[Any], Any],
        tag: str | None = None,
    ) -> Any:
        """Return the union of the types in which the members are stored.

        Return None if all members are stored as they are.

        If several members are models, their Structs have a tag.
        """
        members = [*map(_bare, members)]
        models = [*filter(is_model, members)]
        if len(models) < 2:
            tag = None
        elif not tag:
            tag = _tag_of(models, where)
        replaced: list[Any] = []
        for member in members:
            if is_model(member):
                replaced.append(self.struct(member, where, tag))
            else:
                replaced.append(replace(member))
        if all(new is old for new, old in zip(replaced, members, strict=True)):
            return None
        return reduce(or_, replaced)

    def _field_type(
        self,
        kind: Any,
        metadata: Sequence[Any],
        where: str,
        model: Any,
    ) -> Any:
        """Return a model field's type in the Struct, without constraints: pydantic checks those."""
        if get_origin(kind) is Annotated:
            kind, *inner = get_args(kind)
            metadata = [*metadata, *inner]
        marks: list[Any] = []
        for mark in metadata:
            marks += [*getattr(mark, "metadata", ()), mark]
        _refuse_marks(marks, where)
        if kind is Decimal:
            return _decimal(marks, where)
        if is_model(kind):
            return self.struct(kind, where)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            discriminator = None
            for mark in marks:
                discriminator = discriminator or getattr(mark, "discriminator", None)
            if discriminator is not None and not isinstance(discriminator, str):
                raise TopologyError(
                    f"{where}: a discriminator must be the name of a field.",
                    next_step='Write Field(discriminator="kind").',
                )

            def replace(part: Any) -> Any:
                # In `amount: Decimal | None = Field(max_digits=12, decimal_places=2)`, the digits
                # belong to the Decimal, so the union's other members get none.
                own_marks = marks if part is Decimal else ()
                return self._field_type(part, own_marks, where, model)

            return self.union(arguments, where, replace, discriminator) or kind
        if origin is Literal:
            if any(isinstance(choice, Enum) for choice in arguments):
                raise TopologyError(
                    f"{where}: a Literal of Enum members is not possible.",
                    next_step="Use their values.",
                )
            return kind
        if origin is not None:

            def stored(part: Any) -> Any:
                return self._field_type(part, (), where, model)

            return origin[of_types(stored, arguments)]
        return self._plain_type(kind, where, model)

    def _plain_type(self, kind: Any, where: str, model: Any) -> Any:
        if kind is bytes:
            raise TopologyError(
                f"{where}: pydantic reads bytes as text, but Sluice writes bytes as base64.",
                next_step="Declare it as str.",
            )
        if (
            isinstance(kind, type)
            and issubclass(kind, Enum)
            and model.model_config.get("use_enum_values")
        ):
            return Literal[tuple(member.value for member in kind)]
        name = getattr(kind, "__name__", "")
        if str(getattr(kind, "__module__", "")).startswith("pydantic") and name in _PYDANTIC_TYPES:
            return _PYDANTIC_TYPES[name]
        return self.replace(kind, where)


def required_fields(struct: Any) -> frozenset[str] | None:
    """Return the JSON names of the fields without which a model is invalid.

    `struct` is the class that stores the model. Returns None for a class that stores no model.
    """
    model: Any = getattr(struct, "__made_for__", None)
    if not is_model(model):
        return None
    required: set[str] = set()
    for name, field in model.model_fields.items():
        if field.is_required():
            required.add(_json_name(name, field))
    return frozenset(required)


def _bare(kind: Any) -> Any:
    """Return a model without its annotations, such as the Tag of a union's member."""
    if get_origin(kind) is Annotated and is_model(get_args(kind)[0]):
        return get_args(kind)[0]
    return kind


def _tag_of(models: Sequence[Any], where: str) -> str:
    """Return the field that distinguishes a union's models: a Literal with its own text in each."""
    for name in models[0].model_fields:
        tags = {_only_choice(model.model_fields.get(name)) for model in models}
        if None not in tags and len(tags) == len(models):
            return str(name)
    names = " | ".join(model.__name__ for model in models)
    raise TopologyError(
        f"{where}: no field tells the models {names} apart.",
        next_step="Give each of them a field with a different text, such as "
        "kind: Literal['opened'] in one and kind: Literal['paid'] in another.",
    )


def _only_choice(field: Any) -> str | None:
    if field is None or get_origin(field.annotation) is not Literal:
        return None
    choices = get_args(field.annotation)
    if len(choices) == 1 and type(choices[0]) is str:
        return choices[0]
    return None


def _json_name(name: str, field: Any) -> str:
    """Return the name under which the field is written."""
    return field.serialization_alias or field.alias or name


def _require_different_names(model: Any, where: str) -> None:
    """Raise TopologyError if two fields are written under one name."""
    names: dict[str, str] = {}
    for name, field in model.model_fields.items():
        other = names.setdefault(_json_name(name, field), name)
        if other != name:
            raise TopologyError(
                f"{where}: {model.__name__} writes the fields {other} and {name} under the same "
                "name.",
                next_step="Give one of them another alias.",
            )


def _refuse_unstorable(model: Any, where: str) -> None:
    """Raise TopologyError for a model whose JSON differs from its fields."""
    from pydantic import BaseModel, RootModel
    from pydantic.errors import PydanticUserError

    if model is BaseModel:
        raise TopologyError(
            f"{where}: BaseModel has no fields.", next_step="Use a subclass of BaseModel."
        )
    try:
        # A model's annotations may name classes that are defined after the model. `model_rebuild`
        # finds these classes.
        model.model_rebuild()
    except (PydanticUserError, NameError) as error:
        raise TopologyError(
            f"{where}: {model.__name__} is not complete: {error}.",
            next_step=f"Move the classes that {model.__name__} refers to above "
            f"{model.__name__} in the file.",
        ) from None
    decorators = model.__pydantic_decorators__
    problem = ""
    if issubclass(model, RootModel):
        problem = (
            f"{model.__name__} is a RootModel, which has no fields. Declare the type of its root "
            "instead."
        )
    elif "[" in model.__qualname__:
        problem = (
            f"{model.__name__} is generic. Declare a class: class "
            f"{_identifier(model)}({model.__name__}): pass."
        )
    elif model.model_config.get("extra") == "allow":
        problem = (
            "extra='allow' keeps fields that are not declared, which SQL cannot read. Declare a "
            "dict[str, ...] field."
        )
    elif model.model_config.get("json_encoders"):
        problem = (
            "with json_encoders, SQL would see another value than the topic's readers. Change the "
            "value in a validator."
        )
    elif model.model_computed_fields:
        name = next(iter(model.model_computed_fields))
        problem = (
            f"{name} is a computed field, which a topic does not hold. Declare it as a property, "
            "or as a field."
        )
    elif decorators.field_serializers or decorators.model_serializers:
        name = next(iter({**decorators.field_serializers, **decorators.model_serializers}))
        problem = (
            f"{name} is a serializer, so SQL would see another value than the topic's readers. "
            "Change the value in a validator."
        )
    if problem:
        sentence, _, next_step = problem.partition(". ")
        raise TopologyError(f"{where}: {sentence}.", next_step=next_step)


def _identifier(model: Any) -> str:
    return re.sub(r"\W", "", model.__name__.title())


def _refuse_marks(marks: Sequence[Any], where: str) -> None:
    for mark in marks:
        if type(mark).__name__ in _SERIALIZERS:
            raise TopologyError(
                f"{where}: with a serializer, SQL would see another value than the topic's "
                "readers.",
                next_step="Change the value in a validator.",
            )
        if isinstance(mark, msgspec.Meta) and unit_of(mark.extra) is not None:
            raise TopologyError(
                f"{where}: pydantic guesses the unit of a time that is a number.",
                next_step="Declare the field as int, and the event time with epoch_ms('...'), or "
                "use a Struct.",
            )
        if getattr(mark, "exclude", None) or getattr(mark, "exclude_if", None):
            option = "exclude_if"
            if getattr(mark, "exclude", None):
                option = "exclude=True"
            raise TopologyError(
                f"{where}: {option} leaves the field out of the JSON.",
                next_step=f"Remove {option}.",
            )


def _decimal(marks: Sequence[Any], where: str) -> Any:
    precision = scale = None
    for mark in marks:
        if isinstance(mark, msgspec.Meta) and "scale" in (mark.extra or {}):
            return Annotated[Decimal, mark]
        precision = getattr(mark, "max_digits", None) or precision
        places = getattr(mark, "decimal_places", None)
        scale = scale if places is None else places
    if precision is None or scale is None:
        raise TopologyError(
            f"{where}: a Decimal needs digits.",
            next_step="Declare them: Decimal = Field(max_digits=12, decimal_places=2).",
        )
    return Annotated[Decimal, msgspec.Meta(extra={"precision": precision, "scale": scale})]


# EncodedStr and EncodedBytes are parts of types such as Base64Str, whose values are decoded during
# validation.
_SERIALIZERS = ("PlainSerializer", "WrapSerializer", "EncodedStr", "EncodedBytes")
"""Pydantic's annotations that write a value which differs from the validated value."""
_PYDANTIC_TYPES = {
    "AwareDatetime": datetime,
    "PastDatetime": datetime,
    "FutureDatetime": datetime,
    "PastDate": date,
    "FutureDate": date,
    "EmailStr": str,
}
"""Pydantic's types whose values have another type than the declared one."""
