"""`filmgate doctor`: settings that `filmgate serve` would reject."""

import pytest

from filmgate.cli.doctor import examine
from filmgate.settings import Settings, with_values
from filmgate.telemetry.findings import Verdict
from filmgate.tenants.base import LOCAL_TENANT


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("slo.classes", "short"),
        ("admission.models_file", "nosuch.toml"),
        ("models.adapters_file", "nosuch.toml"),
        ("audit.anchor", "ftp://host/heads"),
    ],
)
def test_a_setting_that_serve_rejects_is_a_finding_with_a_remedy(key, value, tmp_path, monkeypatch):
    monkeypatch.setattr("filmgate.cli.doctor._examine_worker", list)  # imports torch
    settings = with_values(Settings(), {"data": tmp_path / "data"})
    assert [f for f in examine(settings, LOCAL_TENANT) if f.subject == "settings"] == []
    (found,) = (
        f for f in examine(with_values(settings, {key: value}), LOCAL_TENANT) if f.subject == "settings"
    )
    assert (found.verdict, found.remedy) == (Verdict.FAIL, f"correct {key}")
