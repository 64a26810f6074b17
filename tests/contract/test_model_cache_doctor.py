"""The doctor check of the model cache."""

import shutil

from filmgate.models.weights.doctor import check_cache
from filmgate.settings import ModelSettings
from filmgate.telemetry.findings import Verdict


def test_a_writable_cache_is_ok(tmp_path):
    (found,) = check_cache(ModelSettings(cache=str(tmp_path / "cache"), cache_bytes=1000))
    assert (found.verdict, found.remedy) == (Verdict.OK, "")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_budget_larger_than_the_disk_is_a_warning(tmp_path):
    too_many = shutil.disk_usage(tmp_path).total + 1
    (found,) = check_cache(ModelSettings(cache=str(tmp_path), cache_bytes=too_many))
    assert (found.verdict, "models.cache_bytes" in found.remedy) == (Verdict.WARN, True)


def test_a_folder_that_cannot_be_created_fails(tmp_path):
    (tmp_path / "file").write_text("")
    (found,) = check_cache(ModelSettings(cache=str(tmp_path / "file/cache")))
    assert (found.verdict, "models.cache" in found.remedy) == (Verdict.FAIL, True)


def test_the_default_cache_has_no_finding():
    assert list(check_cache(ModelSettings())) == []
