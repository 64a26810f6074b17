"""A row becomes a record, or says which key of which row is wrong."""

from dataclasses import dataclass

import pytest

from filmgate.catalog.records import to_record
from filmgate.errors import UsageError


@dataclass(frozen=True)
class Row:
    name: str
    count: int
    rate: float | None = None
    pair: tuple[float, float] = (0.0, 0.0)


def test_text_cells_become_numbers_and_empty_ones_none():
    assert to_record(Row, {"name": "a", "count": "3", "rate": ""}, "t") == Row("a", 3, None)
    assert to_record(Row, {"name": "a", "count": 3, "rate": "1.5", "pair": [1, 2]}, "t").pair == (1.0, 2.0)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"name": "a", "cuont": 1}, "did you mean count"),
        ({"name": "a"}, "count missing"),
        ({"name": "a", "count": "many"}, "a number is expected"),
        ({"name": 4, "count": 1}, "str is expected"),
        ({"name": "a", "count": 1, "pair": [1]}, "2 values are expected"),
        ({"name": "a", "count": 1, "pair": 1}, "a list is expected"),
    ],
)
def test_a_wrong_row_names_the_key_and_what_was_expected(row, says):
    with pytest.raises(UsageError, match=says):
        to_record(Row, row, "file row 2")
