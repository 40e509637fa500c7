"""Pydantic models as types of values: what cannot be stored, and what is read back."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pydantic.dataclasses
import pytest
from pydantic import (
    AnyUrl,
    Base64Str,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    RootModel,
    Tag,
    computed_field,
)

from sluice import EpochMillis, Pipeline
from sluice.errors import TopologyError
from sluice.values.contracts import fields

T = TypeVar("T")


class Names(RootModel[list[str]]):
    pass


class Computed(BaseModel):
    first: str

    @computed_field
    def name(self) -> str:
        return self.first


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


class Serialized(BaseModel):
    name: str

    @pydantic.field_serializer("name")
    def _upper(self, name: str) -> str:
        return name.upper()


class Encoded(BaseModel):
    at: datetime


# In the class, pydantic would warn that this option is deprecated.
Encoded.model_config["json_encoders"] = {datetime: datetime.timestamp}


class Tree(BaseModel):
    left: Tree | None = None


class Page(BaseModel, Generic[T]):
    rows: list[T]


class Cat(BaseModel):
    kind: Literal["cat"]


class Kitten(BaseModel):
    kind: Literal["cat"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["dog"]


class Kind(Enum):
    CAT = "cat"


class Home(msgspec.Struct):
    cats: list[Cat]


@dataclass
class House:
    cat: Cat | None


class Street(msgspec.Struct):
    home: Home


@pydantic.dataclasses.dataclass
class Validated:
    name: str


class Twins(BaseModel):
    a: int = Field(alias="b")
    b: int = Field(alias="b")


class Foreign:
    pass


class WithForeign(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    foreign: Foreign


CAT_OR_DOG = Annotated[
    Annotated[Cat, Tag("cat")] | Annotated[Strict, Tag("dog")], Discriminator(lambda _: "cat")
]


def _with(kind: Any, **options: Any) -> Any:
    return pydantic.create_model("Odd", __module__=__name__, field=(kind, Field(**options)))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Names, r"Names: Names is a RootModel, which has no fields\. Declare the type of its root"),
        (BaseModel, r"BaseModel has no fields\. Use a subclass of BaseModel"),
        (Computed, r"Computed: name is a computed field, .* Declare it as a property"),
        (Extra, r"Extra: extra='allow' keeps fields .* Declare a dict\[str, \.\.\.\] field"),
        (Serialized, r"Serialized: _upper is a serializer, .* Change the value in a validator"),
        (Tree, r"Tree\.left\.left.*: a model that contains itself"),
        (Page[int], r"Page\[int\] is generic\. Declare a class: class PageInt\(Page\[int\]\): pass"),
        (_with(Decimal), r"Odd\.field: a Decimal needs digits\. .* Field\(max_digits=12, decimal_places=2\)"),
        (_with(list[Decimal]), r"Odd\.field: a Decimal needs digits"),
        (_with(bytes), r"Odd\.field: pydantic reads bytes as text"),
        (_with(EpochMillis), r"Odd\.field: pydantic guesses the unit"),
        (_with(Annotated[str, PlainSerializer(str.upper)]), r"Odd\.field: with a serializer, SQL would see"),
        (_with(str, exclude=True), r"Odd\.field: exclude=True leaves the field out"),
        (_with(str, exclude_if=bool), r"Odd\.field: exclude_if leaves the field out"),
        (_with(Base64Str), r"Odd\.field: with a serializer, SQL would see"),
        (_with(AnyUrl), r"Odd\.field: AnyUrl has no Spark SQL type\. Declare a type of JSON values, such as str"),
        (Encoded, r"Encoded: with json_encoders, SQL would see another value"),
        (_with(Literal[Kind.CAT]), r"Odd\.field: a Literal of Enum members"),
        (_with(Cat | Kitten), r"Odd\.field: no field tells the models Cat \| Kitten apart"),
        (_with(CAT_OR_DOG), r"Odd\.field: a discriminator must be the name of a field"),
        (_with(Cat | Strict), r"Odd\.field: Strict forbids unknown fields"),
        (_with(int | str), r"Odd\.field: UnionType has no Spark SQL type"),
        (Cat | Kitten, r"no field tells the models Cat \| Kitten apart\. .* kind: Literal\['opened'\]"),
        (WithForeign, r"WithForeign\.foreign: Foreign has no Spark SQL type"),
        (Home, r"Home\.cats is a pydantic model, but Home is not: only a pydantic model can .* Home as a pydantic"),
        (House, r"House\.cat is a pydantic model, but House is not: only a pydantic model"),
        (Street, r"Street\.home\.cats is a pydantic model"),
        (_with(House), r"Odd\.field\.cat is a pydantic model"),
        (Annotated[str, []], r"cannot be the type of stored values\. Declare a class or a union"),
        (Twins, r"Twins: Twins writes the fields a and b under the same name"),
        (Validated, r"Validated is a dataclass of pydantic"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_stored_is_refused_when_the_file_is_loaded(
    kind: Any, says: str
) -> None:
    with pytest.raises(TopologyError, match=says):
        Pipeline("shop").stream("sales", value=kind)
    with pytest.raises(TopologyError, match=says):
        Pipeline("shop").stream("names", value=str).map_values(len, returns=kind)


def test_fields_have_their_names_in_json_and_types_without_constraints() -> None:
    class Sale(BaseModel):
        sale_id: Annotated[int, Field(gt=0, alias="saleId")]
        old_name: str = Field(validation_alias="oldName", min_length=1)
        total: Decimal | None = Field(None, max_digits=9, decimal_places=3)
        by_day: dict[str, list[Annotated[Decimal, Field(max_digits=5, decimal_places=1)]]]
        kind: Kind
        pair: tuple[int, ...] = ()
        at: pydantic.AwareDatetime
        cat: Cat | None

    assert fields(pydantic.create_model("Sale", __base__=Sale, __module__=__name__)) == {
        "saleId": "BIGINT",
        "old_name": "STRING",
        "total": "DECIMAL(9,3)",
        "by_day": "MAP<STRING, ARRAY<DECIMAL(5,1)>>",
        "kind": "STRING",
        "pair": "ARRAY<BIGINT>",
        "at": "TIMESTAMP",
        "cat": "STRUCT<kind: STRING>",
    }


def test_a_model_in_a_function_cannot_be_imported_by_tasks() -> None:
    class Sale(BaseModel):
        at: datetime

    with pytest.raises(TopologyError, match="Sale is defined in a function"):
        Pipeline("shop").stream("sales", value=Sale)


def test_other_contracts_do_not_import_pydantic() -> None:
    code = (
        "import msgspec, sys\n"
        "from sluice import Pipeline\n"
        "class Sale(msgspec.Struct):\n    shop: str\n"
        "pipeline = Pipeline('shop')\n"
        "pipeline.stream('sales', value=Sale).map_values(lambda sale: sale.shop, returns=str).to('shops')\n"
        "assert not [name for name in sys.modules if name.startswith('pydantic')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
