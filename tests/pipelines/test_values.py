"""Values and keys of every type pass through a pipeline unchanged."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar

import pytest
from msgspec import Struct

from sluice import Context, Decimal2, Pipeline, Record, Serde, hopping, session, tumbling
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive


class Place(Struct):
    city: str


class Sale(Struct):
    item: str
    amount: int
    tags: list[str] = []


class Note(Struct):
    text: str | None


class Visit(Struct):
    at: datetime
    day: date
    price: Decimal2
    place: Place


VISIT = {
    "at": "2024-01-01T10:00:00.120",
    "day": "2024-01-01",
    "price": 1.5,
    "place": {"city": "Oslo"},
}


def keys_and_values(driver: TopologyTestDriver, topic: str) -> list[tuple[object, object]]:
    return [(record.key, record.value) for record in driver.output(topic)]


@pytest.mark.parametrize("in_python", [False, True])
def test_a_null_result_is_a_null_value_in_sql_as_in_python(drive: Drive, in_python: bool) -> None:
    pipeline = Pipeline("nulls", workers=2)
    sales = pipeline.stream("sales", value=Note)
    texts = (
        sales.map_values(lambda note: note.text, returns=str)
        if in_python
        else sales.map_values("text")
    )
    texts.to("texts", value=str)
    texts.group_by_key().count(store="count")
    texts.to_table(store="latest")
    both = (
        sales.flat_map_values(lambda note: [note.text, "z"], returns=str)  # type: ignore[list-item]
        if in_python
        else sales.flat_map_values("array(text, 'z')")
    )
    both.to("both", value=str)
    both.group_by_key().count(store="both_count")
    driver = drive(pipeline)
    for text in ("a", None):
        driver.pipe("sales", {"text": text}, key="k", timestamp=1)
    assert keys_and_values(driver, "texts") == [("k", "a"), ("k", None)]
    assert keys_and_values(driver, "both") == [("k", "a"), ("k", "z"), ("k", None), ("k", "z")]
    assert [driver.store(name) for name in ("count", "latest", "both_count")] == [
        {"k": 1},
        {},
        {"k": 3},
    ]
    assert {name: n for name, n in driver.counts().items() if name.startswith("null")} == {
        "null_value/count": 1,
        "null_value/both_count": 1,
    }


def reasons(driver: TopologyTestDriver) -> list[tuple[object, str, str]]:
    return [
        (
            dead_letter.value,
            dead_letter.headers["sluice.reason"],
            dead_letter.headers["sluice.detail"],
        )
        for dead_letter in driver.dead_letters()
    ]


T = TypeVar("T")


class Page(Struct, Generic[T], tag="page", tag_field="kind"):
    rows: list[T]
    next: int = 0


class Book(Struct, tag=True):
    page: Page[int]


class Line(Struct, omit_defaults=True):
    sku: str
    qty: int = 1


class Basket(Struct):
    first: Line
    lines: list[Line]


def test_values_may_be_numbers_and_lists(drive: Drive) -> None:
    pipeline = Pipeline("numbers", workers=1)
    four_bytes = Serde(
        int,
        decode=lambda data: int.from_bytes(data, "big", signed=True),
        encode=lambda number: number.to_bytes(4, "big", signed=True),
    )
    numbers, amounts = (
        pipeline.stream("numbers", value=int),
        pipeline.stream("amounts", value=Decimal2),
    )
    numbers.filter("value > 1").map_values("value * 2").to("doubled")
    amounts.group_by_key().reduce(lambda one, other: one + other, store="sum")
    pipeline.stream("lists", value=list[int]).flat_map_values("value").to("elements")
    pipeline.stream("words", value=four_bytes).to("words_copied", value=four_bytes)
    driver = drive(pipeline)
    for topic, value in {
        "numbers": "2",
        "amounts": "1.25",
        "lists": "[3, 4]",
        "words": b"\xff\xff\xff\xfe",
    }.items():
        driver.pipe(topic, value, key="k")
    driver.pipe("numbers", '"2"', key="k")
    driver.pipe("amounts", "1.255", key="k")
    driver.pipe("amounts", "2", key="k")
    assert keys_and_values(driver, "doubled") == [("k", 4)]
    assert keys_and_values(driver, "elements") == [("k", 3), ("k", 4)]
    assert keys_and_values(driver, "words_copied") == [("k", b"\xff\xff\xff\xfe")]
    assert driver.store("sum") == {"k": 3.25}
    assert reasons(driver) == [
        (1.255, "digits", "$: 1.255 is not a decimal(12,2)"),
        ("2", "contract", "Expected `int`, got `str`"),
    ]


def four_digits(count: int) -> bytes:
    if count == 3:
        raise ValueError("three is not written")
    return b"%04d" % count


def test_the_results_of_a_group_are_encoded_too(drive: Drive) -> None:
    pipeline = Pipeline("encoded", workers=1)
    by_key = pipeline.stream("numbers", value=int).group_by_key()
    digits = Serde(int, encode=four_digits)
    by_key.count(store="counts").to("counts_out", value=digits)
    by_key.windowed_by(tumbling("1 second")).count(store="of_second").to(
        "of_second_out", value=digits, emit="latest"
    )
    totals = by_key.aggregate(store="totals", sum="sum(value)")
    totals.to("totals_out", value=Serde(dict, encode=lambda total: b"sum=%d" % total["sum"]))
    driver = drive(pipeline)
    for time in (0, 1_000, 1_500):
        driver.pipe("numbers", "5", key="k", timestamp=time)
    counts = [value for _, value in keys_and_values(driver, "counts_out")]
    assert set(counts) <= {b"0001", b"0002"}  # a batch writes the last count
    windows = {
        record.headers["window_start"]: record.value for record in driver.output("of_second_out")
    }
    assert windows == {"0": b"0001", "1000": b"0002"}
    assert keys_and_values(driver, "totals_out")[-1] == ("k", b"sum=15")
    (rejected,) = driver.dead_letters()
    assert rejected.headers["sluice.detail"] == "ValueError: three is not written"


def test_aggregated_objects_keep_their_field_names(drive: Drive) -> None:
    pipeline = Pipeline("visits", workers=1)
    visits = pipeline.stream("visits", value=Visit)
    by_city = visits.group_by("place.city")
    columns = {
        "last": "max(at)",
        "place": "max_by(place, at)",
        "newest": "max_by(struct(at, price), at)",
    }
    by_city.aggregate(columns, store="newest")
    driver = drive(pipeline)
    driver.pipe("visits", VISIT, timestamp=0)
    at = "2024-01-01T10:00:00.120000Z"
    assert driver.store("newest") == {
        "Oslo": {"last": at, "place": {"city": "Oslo"}, "newest": {"at": at, "price": 1.5}}
    }


def test_aggregates_of_sessions_keep_their_field_names(drive: Drive) -> None:
    pipeline = Pipeline("visits", workers=1)
    by_city = (
        pipeline.stream("visits", value=Visit).group_by("place.city").windowed_by(session("1 hour"))
    )
    by_city.aggregate(store="sessions", last="max(at)", all="collect_list(struct(day))")
    driver = drive(pipeline)
    driver.pipe("visits", VISIT, timestamp=0)
    assert driver.store("sessions") == {
        ("Oslo", 0, 0): {"last": "2024-01-01T10:00:00.120000Z", "all": [{"day": "2024-01-01"}]}
    }


QUOTES = {
    "'it''s'": "it's",
    r"'it\'s'": "it's",
    '"it\'s"': "it's",
    '"say ""x"""': 'say "x"',
    "'say \"\"x'": 'say ""x',
}


@pytest.mark.parametrize("condition", ["item = 'it''s'", "item = 'it''s' AND rlike(item, 't')"])
def test_a_doubled_quote_in_a_text_is_one_quote(drive: Drive, condition: str) -> None:
    """Spark, which computes the second condition, reads SQL texts so. The first one is computed on Arrow."""
    pipeline = Pipeline("quotes")
    sales = pipeline.stream("sales", value=Sale)
    sales.filter(condition).select({f"t{number}": text for number, text in enumerate(QUOTES)}).to(
        "texts"
    )
    driver = drive(pipeline)
    for item in ("it's", "its"):
        driver.pipe("sales", {"item": item, "amount": 1}, "k")
    assert [record.value for record in driver.output("texts")] == [
        {f"t{number}": text for number, text in enumerate(QUOTES.values())}
    ]


FORMATTED = "max(to_char(amount, '$99.9'))"
AGGREGATES: dict[str, tuple[str, Any]] = {
    "formatted": (FORMATTED, "$ 3.0"),
    "listed": ("array_join(collect_list(to_char(amount, '099')), '')", "001002003"),
    "largest": ("max_by(item, amount + 1)", "c"),
    "quartiles": ("percentile(amount + 0, array(0.25, 0.75))", [1.5, 2.5]),
    "first": (f"first(item, true) || {FORMATTED} FILTER (WHERE amount IN (1, 2))", "a$ 2.0"),
    "last": ("last(item) IGNORE NULLS", "c"),
    "quoted": ("collect_list(concat(item, '''s'))", ["a's", "b's", "c's"]),
}


@pytest.mark.spark
def test_aggregates_are_computed_as_the_author_wrote_them(drive: Drive) -> None:
    """Even if sqlglot, which parses the expressions, would write them with another format, delimiter or argument."""
    pipeline = Pipeline("formats")
    columns = {name: text for name, (text, _) in AGGREGATES.items()}
    pipeline.stream("sales", value=Sale).group_by_key().aggregate(columns, store="formats")
    driver = drive(pipeline)
    for amount, item in enumerate("abc", 1):
        driver.pipe("sales", {"item": item, "amount": amount}, "k")
    assert driver.store("formats") == {
        "k": {name: result for name, (_, result) in AGGREGATES.items()}
    }


def test_nested_defaults_count_although_their_struct_omits_them(drive: Drive) -> None:
    pipeline = Pipeline("baskets", workers=1)
    baskets = pipeline.stream("baskets", value=Basket)
    baskets.group_by_key().aggregate(store="sold", pieces="sum(first.qty)")
    baskets.filter("first.qty = 1").select("lines").to("single")
    baskets.map_values(quantities, returns=list[int]).to("quantities")
    driver = drive(pipeline)
    for line in ({"sku": "a", "qty": 5}, {"sku": "a", "qty": 1}, {"sku": "a"}):
        driver.pipe("baskets", {"first": line, "lines": [line]}, key="k")
    assert driver.store("sold") == {"k": {"pieces": 7}}
    assert [value for _, value in keys_and_values(driver, "single")] == [
        {"lines": [{"sku": "a", "qty": 1}]}
    ] * 2
    assert [value for _, value in keys_and_values(driver, "quantities")] == [[5, 5], [1, 1], [1, 1]]
    assert not reasons(driver)


def test_tags_are_fields(drive: Drive) -> None:
    pipeline = Pipeline("books", workers=1)
    books = pipeline.stream("books", value=Book)
    books.to("copies")
    books.filter("type = 'Book' AND page.kind = 'page'").select(kind="page.kind").to("kinds")
    books.map_values(turned, returns=Book).to("turned")
    books.to_table(store="books_by_key")
    books.group_by_key().reduce(later, store="last")
    driver = drive(pipeline)
    driver.pipe("books", {"type": "Book", "page": {"kind": "page", "rows": [1, 2]}}, key="k")
    book: dict[str, Any] = {"type": "Book", "page": {"kind": "page", "rows": [1, 2], "next": 0}}
    assert keys_and_values(driver, "copies") == [("k", book)]
    assert keys_and_values(driver, "kinds") == [("k", {"kind": "page"})]
    assert keys_and_values(driver, "turned") == [
        ("k", {**book, "page": {**book["page"], "next": 1}})
    ]
    assert driver.store("books_by_key") == driver.store("last") == {"k": book}
    assert not reasons(driver)


def turned(book: Book) -> Book:
    return Book(Page(book.page.rows, book.page.next + 1))


def later(one: Book, other: Book) -> Book:
    return other


def quantities(basket: Basket) -> list[int]:
    return [line.qty for line in (basket.first, *basket.lines)]


def test_a_stream_looks_up_a_global_table_by_the_keys_text(drive: Drive) -> None:
    pipeline = Pipeline("keys", workers=1)
    visits = pipeline.stream("visits", value=Visit)
    for field in ("at", "day", "price"):
        table = pipeline.global_table(f"by_{field}", value=Visit, key=field)
        visits.join(table, on=field).map_values("right.place.city").to(f"city_by_{field}")
    driver = drive(pipeline)
    for field in ("at", "day", "price"):
        driver.pipe(f"by_{field}", VISIT)
    driver.commit()
    driver.pipe("visits", VISIT)
    assert [list(driver.store(f"by_{field}")) for field in ("at", "day", "price")] == [
        ["2024-01-01 10:00:00.12"], ["2024-01-01"], ["1.5"],
    ]  # fmt: skip
    assert [
        keys_and_values(driver, f"city_by_{field}") for field in ("at", "day", "price")
    ] == 3 * [[(None, "Oslo")]]


def read_sale(data: bytes) -> Sale | dict[str, str]:
    item, amount = data.decode().split(",")
    return Sale(item, int(amount)) if amount.isdigit() else {"item": item}


def test_a_value_that_a_serde_or_a_function_rejects_is_one_dead_letter(drive: Drive) -> None:
    pipeline = Pipeline("refusals", workers=1)
    commas = pipeline.stream("commas", value=Serde(Sale, decode=read_sale))  # type: ignore[arg-type]
    commas.to("read")
    sales = pipeline.stream("sales", value=Sale)
    sales.flat_map_values("tags").to("tags")
    sales.map_values(lambda sale: 1 / sale.amount, returns=float).to("parts")
    sales.filter(lambda sale: 2 / sale.amount > 1).to("small")
    driver = drive(pipeline)
    deep = b"[" * 5_000 + b"]" * 5_000
    driver.pipe("commas", "apple,many", key=b"\xff", headers={"from": "a test", "empty": None})
    driver.pipe("sales", deep, key="deep")
    driver.pipe("commas", "apple,2")
    driver.pipe("sales", {"item": "pear", "amount": 0, "tags": ["a", "b", "c"]})
    assert keys_and_values(driver, "read") == [(None, {"item": "apple", "amount": 2, "tags": []})]
    assert keys_and_values(driver, "tags") == [(None, "a"), (None, "b"), (None, "c")]
    assert sorted(detail for _, _, detail in reasons(driver)) == [
        "Expected `object`, got `array`", "ZeroDivisionError: division by zero", "decode returned dict, not Sale",
    ]  # fmt: skip
    letters = {letter.key: letter for letter in driver.dead_letters()}
    assert {key: letter.headers.get("from") for key, letter in letters.items()} == {
        b"\xff": "a test", None: None, "deep": None,
    }  # fmt: skip
    assert letters[b"\xff"].headers["empty"] is None
    assert letters["deep"].value == deep


def test_a_value_that_is_not_an_object_is_called_value(drive: Drive) -> None:
    pipeline = Pipeline("counts", workers=1)
    by_item = pipeline.stream("sales", value=Sale).group_by("item")
    by_item.count(store="selected").select(n="value").to("numbers", emit="latest")
    by_item.count(store="filtered").filter("value > 1").to("often")
    driver = drive(pipeline)
    driver.pipe("sales", {"item": "pear", "amount": 1})
    driver.pipe("sales", {"item": "pear", "amount": 1})
    assert keys_and_values(driver, "numbers") == [("pear", {"n": 2})]
    assert keys_and_values(driver, "often") == [("pear", None), ("pear", 2)]


class Form(Struct):
    word: str
    flag: bool = True
    price: Decimal2 = Decimal("1.50")
    rate: float = 0.25
    day: date = date(2024, 1, 1)
    at: datetime = datetime(2024, 1, 1, 10)
    sizes: list[int] = []

    def __post_init__(self) -> None:
        self.word = self.word.strip()


@pytest.mark.spark
def test_texts_are_written_as_json_writes_the_value(drive: Drive) -> None:
    pipeline = Pipeline("texts", workers=1)
    forms = pipeline.stream("forms", value=Form)
    for field in ("word", "flag", "price", "rate", "day", "at", "sizes"):
        forms.map_values(field).to(field, value=str)
    forms.map_values(lambda form: form.flag, returns=bool).to("flag_of_function", value=str)
    forms.map_values(lambda form: {"flag": form.flag, "none": None}).to(
        "any_of_function", value=str
    )
    forms.map_values("CAST(1.23456789012345678901 AS DECIMAL(30,20))").to("exact", value=str)
    driver = drive(pipeline)
    driver.pipe("forms", {"word": ' a "b" ', "sizes": [1, 2]})
    expected = {
        "word": 'a "b"', "flag": "true", "price": "1.50", "rate": "0.25", "day": "2024-01-01",
        "at": "2024-01-01T10:00:00.000000Z", "sizes": "[1,2]", "flag_of_function": "true",
        "any_of_function": '{"flag":true,"none":null}', "exact": "1.23456789012345678901",
    }  # fmt: skip
    assert {topic: driver.output(topic)[0].value for topic in expected} == expected


def test_all_tables_have_the_same_form_of_a_value(drive: Drive) -> None:
    pipeline = Pipeline("forms", workers=1, zone="Europe/Oslo")
    pipeline.table("forms", value=Form, store="table")
    pipeline.stream("streamed", value=Form).to_table(store="latest")
    table = pipeline.global_table("shared", value=Form)
    pipeline.stream("words", value=str).join(table).map_values("right.word").to("found", value=str)
    driver = drive(pipeline)
    for topic in ("forms", "streamed", "shared"):
        driver.pipe(topic, {"word": " a ", "unknown": 1}, key="k")
    driver.commit()
    driver.pipe("words", "w", key="k")
    stored = driver.store("shared")
    assert stored == driver.store("table") == driver.store("latest")
    assert (stored["k"]["word"], stored["k"]["at"]) == ("a", "2024-01-01T09:00:00.000000Z")
    assert [record.value for record in driver.output("found")] == ["a"]


class KeepForms:
    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Form]) -> None:
        self.context.store("kept").put("form", record.value)
        self.context.forward(record.key, record.value)


@pytest.mark.parametrize(
    "at", ["2024-01-01T10:00:00Z", "2024-01-01T12:00:00+02:00", "2024-01-01T10:00:00"]
)
def test_a_time_has_the_same_text_whatever_has_computed_it(drive: Drive, at: str) -> None:
    pipeline = Pipeline("times", workers=1)
    forms = pipeline.stream("forms", value=Form)
    forms.map_values("at").to("expression", value=str)
    forms.map_values(lambda form: form.at, returns=datetime).to("function", value=str)
    forms.map_values(lambda form: form, returns=Form).map_values("at").to(
        "form_of_function", value=str
    )
    forms.process(KeepForms, stores={"kept": Form}, returns=Form).output.map_values("at").to(
        "processor", value=str
    )
    by_key = forms.group_by_key()
    by_key.aggregate(store="sql", at="last(at)")
    by_key.aggregate(
        lambda: datetime(1970, 1, 1), lambda last, form: form.at, store="time", returns=datetime
    )
    by_key.reduce(lambda last, form: form, store="form")
    by_key.reduce(lambda last, form: form, store="changes").to("changes")
    driver = drive(pipeline)
    for _ in range(2):
        driver.pipe("forms", {"word": "a", "at": at, "sizes": [1]}, key="k")
        driver.commit()
    text = "2024-01-01T10:00:00.000000Z"
    for topic in ("expression", "function", "form_of_function", "processor"):
        assert [record.value for record in driver.output(topic)] == [text, text], topic
    assert [record.value["at"] for record in driver.output("changes")] == [text, text]
    stores = {name: driver.store(name)["k"] for name in ("sql", "time", "form", "kept")}
    assert stores["time"] == text
    assert [stores["sql"]["at"], stores["form"]["at"], stores["kept"]["form"]["at"]] == [text] * 3


class Photo(Struct):
    shop: str
    file: bytes


def test_bytes_stay_the_same_through_functions_tables_and_aggregates(drive: Drive) -> None:
    pipeline = Pipeline("photos", workers=1)
    photos = pipeline.stream("photos", value=Photo)
    photos.map_values(lambda photo: photo.file, returns=bytes).to("files")
    photos.map_values(lambda photo: photo, returns=Photo).select("file").to("selected")
    newest = photos.group_by("shop").reduce(lambda last, photo: photo, store="newest")
    newest.to_stream().select("file").to("changes")
    newest.group_by("'all'").aggregate(store="all", files="collect_list(file)")
    driver = drive(pipeline)
    driver.pipe("photos", Photo("Oslo", b"\x01\xff"), key="a")
    base64 = "Af8="
    assert [record.value for record in driver.output("files")] == [base64]
    assert [record.value for record in driver.output("selected")] == [{"file": base64}]
    assert [record.value for record in driver.output("changes")] == [{"file": base64}]
    assert driver.store("newest") == {"Oslo": {"shop": "Oslo", "file": base64}}
    assert driver.store("all") == {"all": {"files": [base64]}}


def spoil(sale: Sale) -> Sale:
    """Changes its argument, and returns it."""
    sale.tags.append("spoilt")
    sale.item = "spoilt"
    return sale


def is_spoilt(sale: Sale) -> bool:
    return bool(spoil(sale))


def collect(tags: list[str], sale: Sale) -> list[str]:
    tags.extend(sale.tags)
    spoil(sale)
    return tags


class Spoils:
    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Sale]) -> None:
        self.context.forward(record.key, record.value)
        spoil(record.value)


def test_functions_that_change_their_arguments_spoil_no_other_step(drive: Drive) -> None:
    pipeline = Pipeline("spoils", workers=1)
    sales = pipeline.stream("sales", value=Sale).filter(is_spoilt).peek(spoil)
    table = pipeline.global_table("stock", value=Sale)
    sales.map_values(spoil, returns=Sale).map_values(spoil, returns=Sale).to("mapped")
    sales.to("sales_after")
    sales.flat_map_values(lambda sale: [sale, spoil(sale), sale], returns=Sale).to("flat")
    sales.select_key(lambda sale: spoil(sale).item).to("keyed")
    sales.process(Spoils, returns=Sale).output.to("processed")
    sales.join(table).filter(lambda both: both["right"].pop("item") == "stock").to("joined")
    keyed = sales.group_by_key()
    keyed.windowed_by(hopping("4 ms", advance="1 ms")).aggregate(
        list, collect, store="lists", returns=list[str]
    )
    keyed.aggregate(list, collect, store="list", returns=list[str])
    keyed.reduce(lambda one, other: spoil(one) and spoil(other), store="last")
    driver = drive(pipeline)
    driver.pipe("stock", {"item": "stock", "amount": 0}, key="k")
    driver.commit()
    for time in (10, 11):
        driver.pipe(
            "sales", {"item": "pear", "amount": time, "tags": ["a"]}, key="k", timestamp=time
        )
    given = [{"item": "pear", "amount": time, "tags": ["a"]} for time in (10, 11)]
    for topic in ("sales_after", "keyed", "processed"):
        assert [record.value for record in driver.output(topic)] == given, topic
    assert [record.value["tags"] for record in driver.output("mapped")] == [
        ["a", "spoilt", "spoilt"]
    ] * 2
    assert [record.value["tags"] for record in driver.output("flat")] == [["a", "spoilt"]] * 6
    assert [record.value["left"] for record in driver.output("joined")] == given
    assert {start: tags for (_, start, _), tags in driver.store("lists").items()} == {
        7: ["a"], 8: ["a", "a"], 9: ["a", "a"], 10: ["a", "a"], 11: ["a"],
    }  # fmt: skip
    assert driver.store("list") == {"k": ["a", "a"]}
    assert driver.store("last") == {"k": {"item": "spoilt", "amount": 11, "tags": ["a", "spoilt"]}}
