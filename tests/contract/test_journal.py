"""The journal of a download, across processes and kills."""

import pytest

from filmgate.models.weights.journal import Journal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def test_the_next_process_reads_what_was_written(path):
    journal = Journal(path, "digest 100")
    journal.add_range("a b.bin", 0)
    journal.add_range("a b.bin", 200)
    journal.add_verified("c.bin")
    again = Journal(path, "digest 100")
    assert [again.has_range("a b.bin", begin) for begin in (0, 100, 200)] == [True, False, True]
    assert again.is_verified("c.bin")
    assert again.has_range("c.bin", 700), "a verified file has all its ranges"


def test_a_dropped_file_has_no_ranges(path):
    journal = Journal(path, "digest 100")
    journal.add_range("a", 0)
    journal.add_range("b", 0)
    journal.add_verified("a")
    journal.drop("a")
    for known in (journal, Journal(path, "digest 100")):
        assert not known.is_verified("a")
        assert (known.has_range("a", 0), known.has_range("b", 0)) == (False, True)


def test_another_manifest_or_range_size_starts_over(path):
    Journal(path, "digest 100").add_range("a", 0)
    assert not Journal(path, "digest 200").has_range("a", 0)
    assert not Journal(path, "digest 100").has_range("a", 0)


def test_a_line_cut_off_by_a_kill_is_ignored(path):
    Journal(path, "digest 100").add_range("a", 0)
    with path.open("a") as file:
        file.write("range 1")
    journal = Journal(path, "digest 100")
    journal.add_range("a", 300)
    again = Journal(path, "digest 100")
    assert [again.has_range("a", begin) for begin in (0, 1, 100, 300)] == [True, False, False, True]
