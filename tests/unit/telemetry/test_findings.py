"""The findings of `filmgate doctor` about the machine."""

import shutil
from types import SimpleNamespace

from filmgate.telemetry.findings import MIN_FREE_BYTES, Verdict, examine_machine


def test_the_disk_of_the_data_folder_is_examined_before_the_folder_exists(tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    free = {other: MIN_FREE_BYTES, tmp_path: MIN_FREE_BYTES - 1}
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[folder]))
    *_, disk = examine_machine(tmp_path / "new" / "data")
    assert (disk.verdict, disk.message) == (Verdict.WARN, f"5.0 GiB free in {tmp_path}")
    assert disk.remedy
