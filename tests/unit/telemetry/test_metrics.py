"""The list of metrics: its page is up to date, its names follow the conventions, and DCGM's file matches."""

import re
from pathlib import Path

import pytest

from filmgate.telemetry.metrics import METRICS, Kind

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions_of_prometheus(metric):
    assert re.fullmatch(r"filmgate_[a-z0-9_]+", metric.name)
    assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
    assert metric.help.endswith(".")


def test_the_counters_file_of_dcgm_has_every_field_that_we_map():
    """With the ECC counters, which the exporter's own file leaves out."""
    lines = (ROOT / "deploy/dcgm-counters.csv").read_text().splitlines()
    rows = [line.split(", ", 2) for line in lines if line and not line.startswith("#")]
    assert {len(row) for row in rows} == {3}
    assert {row[1] for row in rows} == {"gauge", "counter"}
    fields = [row[0] for row in rows]
    mapped = {field for metric in METRICS for field in _expand(metric.dcgm.partition(" ")[0]) if field}
    assert len(fields) == len(set(fields))
    assert mapped <= set(fields)
    assert "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL" in mapped


def _expand(field):
    """Every field of a name with alternatives: `A_{B,C}` is A_B and A_C."""
    if not (match := re.search(r"\{([^}]*)\}", field)):
        return [field]
    return [
        one
        for choice in match[1].split(",")
        for one in _expand(field[: match.start()] + choice + field[match.end() :])
    ]
