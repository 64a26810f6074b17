"""Rows become records, or the error names the file, the row and the key."""

from dataclasses import dataclass

import pytest

from filmgate.catalog.records import (
    Amount,
    IsoDate,
    PositiveCount,
    parse_csv,
    parse_record,
    parse_rows,
    with_keys,
)
from filmgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Inner:
    share: Amount


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    count: PositiveCount
    price: Amount | None = None
    pair: tuple[Amount, Amount] = (0.0, 0.0)
    inner: Inner | None = None
    as_of: IsoDate = "2026-11-15"


def rejection(data, kind=None):
    with pytest.raises(UsageError) as caught:
        if kind is None:
            parse_record(Row, data, "file.toml", option="--catalog")
        parse_rows(kind, data, "file.toml", option="--catalog")
    assert caught.value.option == "--catalog"
    return str(caught.value)


def test_values_are_converted_to_the_types_of_the_record():
    row = parse_record(Row, {"name": "a", "count": 3, "price": 2, "pair": [1, 2], "inner": {"share": 1}}, "t")
    assert row == Row("a", 3, 2.0, (1.0, 2.0), Inner(1.0))
    assert isinstance(row.price, float)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"name": "a", "cuont": 1}, "file.toml: unknown key cuont; did you mean count?"),
        ({"name": "a", "count": 1, "zzz": 1}, "file.toml: unknown key zzz; known keys: name, count, price"),
        ({"name": "a"}, "file.toml: count is missing"),
        ({"name": "a", "count": "many"}, "file.toml: count: input should be a valid integer, got 'many'"),
        ({"name": "a", "count": True}, "file.toml: count: input should be a valid integer, got True"),
        ({"name": "a", "count": 0}, "file.toml: count: input should be greater than 0, got 0"),
        ({"name": 4, "count": 1}, "file.toml: name: input should be a valid string, got 4"),
        ({"name": "a", "count": 1, "pair": [1]}, "file.toml: pair[1] is missing"),
        ({"name": "a", "count": 1, "pair": 1}, "file.toml: pair: input should be a valid tuple, got 1"),
        ({"name": "a", "count": 1, "inner": {"share": 1, "x": 2}}, "file.toml: inner: unknown key x"),
        ({"name": "a", "count": 1, "as_of": "soon"}, "file.toml: as_of: string should match pattern"),
    ],
)
def test_a_wrong_row_is_rejected_with_its_key(row, message):
    assert rejection(row).startswith(message)


@pytest.mark.parametrize("price", [-0.01, float("nan"), float("inf"), float("-inf")])
def test_a_price_is_finite_and_not_negative(price):
    assert rejection({"name": "a", "count": 1, "price": price}).startswith(
        "file.toml: price: input should be"
    )
    assert rejection({"name": "a", "count": 1, "pair": [1, price]}).startswith("file.toml: pair[1]: ")


def test_a_row_is_named_by_its_position_or_its_key():
    good, bad = {"name": "a", "count": 1}, {"name": "a", "count": -1}
    assert rejection([good, bad], list[Row]).startswith("file.toml: row 2: count: ")
    assert rejection({"x": good, "y": bad}, dict[str, Row]).startswith("file.toml: y: count: ")
    assert rejection({"x": 3}, dict[str, Row]).startswith("file.toml: x: input should be a dictionary")


def test_keys_of_a_table_are_stored_in_the_rows():
    table = with_keys({"a": {"count": 1}, "b": 3}, "name")
    assert table == {"a": {"name": "a", "count": 1}, "b": 3}
    assert with_keys(7, "name") == 7


def test_csv_cells_become_numbers_and_empty_cells_take_the_default():
    assert parse_csv(Row, "name,count,price\na,3,\nb,4,1.5\n", "t") == [Row("a", 3), Row("b", 4, 1.5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,count\na,1\nb,-2\n", "p.csv line 3: count: input should be greater than 0, got '-2'"),
        ("name,count,price\na,1,nan\n", "p.csv line 2: price: input should be a finite number, got 'nan'"),
        ("name,count\na,\n", "p.csv line 2: count is missing"),
        ("name,count,prise\na,1,2\n", "p.csv line 2: unknown key prise; did you mean price?"),
        ("name,count\na,1,2\n", "p.csv line 2: unknown key (column without a header)"),
    ],
)
def test_a_wrong_csv_row_is_rejected_with_its_line_and_column(text, message):
    with pytest.raises(UsageError) as caught:
        parse_csv(Row, text, "p.csv")
    assert str(caught.value).startswith(message)
