"""Timed trials: what is kept on disk, and what happens to entries that are no result."""

import json
import os

import pytest
import torch

from filmgate.pipeline.trials import (
    CACHE_VARIABLE,
    FILE_NAME,
    Candidate,
    Trial,
    cache_folder,
    choose,
    read_trials,
    relative_error,
)


@pytest.fixture
def file(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path / FILE_NAME


def candidate(trial, error=0.0):
    return Candidate("the fast decoder", lambda: error, 0.1, "a GPU", trial)


@pytest.mark.parametrize(
    "entry",
    [
        {"fast_seconds": None, "exact_seconds": 1.0},
        {"fast_seconds": "1", "exact_seconds": 1.0},
        {"fast_seconds": -1.0, "exact_seconds": 1.0},
        {"fast_seconds": float("nan"), "exact_seconds": 1.0},
        {"fast_seconds": 1.0},
        {"fast_seconds": 1.0, "exact_seconds": 2.0, "more": 3.0},
        None,
        [],
        "fast",
    ],
)
def test_an_entry_that_is_no_result_is_ignored_and_replaced(file, entry, caplog):
    other = {"fast_seconds": 1.0, "exact_seconds": 2.0}
    file.write_text(json.dumps({"a GPU": entry, "another GPU": other}))
    assert choose(candidate(lambda: Trial(3.0, 4.0))) is True
    assert "timing again" in caplog.text
    assert read_trials(file) == {"a GPU": Trial(3.0, 4.0), "another GPU": Trial(1.0, 2.0)}


@pytest.mark.parametrize("text", ["", "[]", "3", "{not json"])
def test_a_file_without_results_is_replaced(file, text):
    file.write_text(text)
    assert choose(candidate(lambda: Trial(4.0, 3.0))) is False
    assert read_trials(file) == {"a GPU": Trial(4.0, 3.0)}


def test_a_result_is_timed_once(file):
    runs = []
    for _ in range(2):
        assert choose(candidate(lambda: runs.append(1) or Trial(1.0, 2.0)))
    assert len(runs) == 1


def test_a_result_that_cannot_be_kept_is_used_and_leaves_no_file_behind(file, caplog):
    file.mkdir()  # a file cannot replace it
    assert choose(candidate(lambda: Trial(1.0, 2.0))) is True
    assert "cannot be kept" in caplog.text
    assert [path.name for path in file.parent.iterdir()] == [FILE_NAME]


def test_a_user_without_a_name_has_a_folder_too(file, monkeypatch):
    """As in a container that runs as any user id."""

    def fail():
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", fail)
    assert choose(candidate(lambda: Trial(1.0, 2.0))) is True
    assert cache_folder() == file.parent
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_folder().name == f"torchinductor_uid_{os.getuid()}"


def test_nothing_is_kept_if_the_trial_runs_out_of_memory(file):
    def full():
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert choose(candidate(full)) is None
    assert not file.exists()


def test_an_implementation_that_differs_is_not_timed(file, caplog):
    assert choose(candidate(None, error=float("inf"))) is False
    (record,) = caplog.records
    assert record.fields["relative_error"] is None  # infinity is not valid JSON
    assert not file.exists()


def test_the_error_of_frames_with_nan_is_infinite():
    assert relative_error(torch.tensor([float("nan")]), torch.ones(1)) == float("inf")
    assert relative_error(torch.tensor([1.5]), torch.ones(1)) == 0.5
