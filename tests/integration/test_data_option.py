"""Every command that uses data takes --data, says where it looked, and creates no data folder."""

import sys

import pytest

from filmgate.cli import main
from filmgate.database import open_database
from filmgate.settings import QueueSettings
from filmgate.store.keys.files import FileKeyring


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["filmgate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run


@pytest.mark.parametrize(
    "command",
    [
        ("keys", "rotate", "acme"),
        ("keys", "rewrap", "acme"),
        ("keys", "adopt"),
        ("backup", "copy"),
        ("tenant", "list"),
        ("route", "video_0"),
        ("models", "pull", "s3://film/models/wan/v1/"),
    ],
    ids=" ".join,
)
def test_a_missing_data_folder_is_an_error_and_is_not_created(run, tmp_path, command):
    code, out, err = run(*command, "--data", "elsewhere")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: --data: there is no data folder {tmp_path / 'elsewhere'}; use --data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("config",), ("models", "list")], ids=" ".join)
def test_a_command_that_only_reads_says_that_the_folder_does_not_exist(run, tmp_path, command):
    code, _, err = run(*command, "--data", "elsewhere")
    assert code == 0
    assert err == f"data folder: {tmp_path / 'elsewhere'} (does not exist yet; `filmgate serve` creates it)\n"
    assert list(tmp_path.iterdir()) == []


def test_the_given_folder_is_the_one_that_is_used(run, tmp_path):
    folder = tmp_path / "mine"
    open_database(QueueSettings(), folder).close()
    FileKeyring(folder / "keys").new_data_key("acme")
    code, out, err = run("keys", "rewrap", "acme", "--data", "mine")
    assert (code, err) == (0, "database: mine/filmgate.db\n")
    assert out.startswith("0 prompts and 0 objects rewrapped")
    _, out, _ = run("config", "--data", "mine", "--json")
    assert '"data": {"value": "mine", "source": "--data"}' in out
    assert not (tmp_path / "data").exists()
