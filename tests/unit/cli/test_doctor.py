"""`filmgate doctor`: settings that `filmgate serve` would reject."""

import pytest

from filmgate.cli.doctor import examine
from filmgate.settings import Settings, with_values
from filmgate.telemetry.findings import Verdict
from filmgate.tenants.base import LOCAL_TENANT


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("slo.classes", "short", "correct slo.classes"),
        ("admission.models_file", "nosuch.toml", "correct admission.models_file"),
        ("models.adapters_file", "nosuch.toml", "correct models.adapters_file"),
        ("audit.anchor", "ftp://host/heads", "correct audit.anchor"),
        ("audit.anchor", "nosuch/heads.jsonl", "create the folder, or allow the servers to write there"),
    ],
)
def test_a_setting_that_serve_cannot_use_is_a_finding_with_a_remedy(
    key, value, remedy, tmp_path, monkeypatch
):
    monkeypatch.setattr("filmgate.cli.doctor._examine_worker", list)  # imports torch
    settings = with_values(Settings(), {"data": tmp_path / "data"})

    def failed(settings):
        return [found.remedy for found in examine(settings, LOCAL_TENANT) if found.verdict is Verdict.FAIL]

    assert failed(settings) == []
    assert failed(with_values(settings, {key: value})) == [remedy]
