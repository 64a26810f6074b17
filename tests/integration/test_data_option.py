"""Every command that uses data takes --data, says where it looked, and creates no data folder."""

import pytest
import typer

from filmgate.cli import app
from filmgate.database import open_database
from filmgate.settings import QueueSettings
from filmgate.store.keys.files import FileKeyring

# Commands that need a data folder, with arguments that are valid otherwise.
NEEDS_FOLDER = {
    "worker": ["--model", "flipbook"],
    "backup": ["copy"],
    "restore": ["copy"],
    "route": ["video_" + "0" * 32],
    "models pull": ["s3://film/models/wan/v1/"],
    "models reset-canary": ["abc"],
    "tenant add": ["acme"],
    "tenant set": ["acme", "--weight", "2"],
    "tenant list": [],
    "tenant show": ["acme"],
    "tenant rotate": ["acme"],
    "tenant enable": ["acme"],
    "tenant disable": ["acme"],
    "tenant forget": ["acme", "--yes"],
    "tenant delete": ["acme", "--yes"],
    "keys rotate": ["acme"],
    "keys rewrap": ["acme"],
    "keys adopt": [],
    "audit show": [],
    "audit export": ["-o", "audit.jsonl"],
    "audit verify": [],
    "deploy migrate": [],
    "plan rightsize": ["--instance", "g6.xlarge"],
}
# Commands that can do their work without one, and their exit code.
NEEDS_NONE = {
    "config": ([], 0),
    "doctor": ([], 0),
    "models list": ([], 0),
    "models search": (["flipbook"], 0),
    "models verify": ([], 0),
    "models evict": (["--to", "0"], 0),
    # These read the API key from the folder, unless --key-file is given.
    "jobs list": ([], 2),
    "jobs show": (["video_0"], 2),
    "jobs watch": (["video_0"], 2),
    "jobs cancel": (["video_0"], 2),
    "jobs download": (["video_0"], 2),
}
CREATES_FOLDER = {"generate", "serve"}


def commands_with_data(command, path=()):
    if not hasattr(command, "commands"):
        return {" ".join(path)} if any("--data" in each.opts for each in command.params) else set()
    return set().union(*(commands_with_data(each, (*path, n)) for n, each in command.commands.items()))


def test_every_command_with_a_data_folder_is_tested_here():
    found = commands_with_data(typer.main.get_command(app))
    assert found == NEEDS_FOLDER.keys() | NEEDS_NONE.keys() | CREATES_FOLDER


@pytest.mark.parametrize("command", NEEDS_FOLDER)
def test_a_missing_data_folder_is_an_error_and_is_not_created(run_command, tmp_path, command):
    code, out, err = run_command(*command.split(), *NEEDS_FOLDER[command], "--data", "elsewhere")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: --data: there is no data folder {tmp_path / 'elsewhere'}; ")
    assert any(word in err for word in ("--data, set FILMGATE_DATA", "`mkdir`"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", NEEDS_NONE)
def test_a_command_that_needs_no_data_folder_does_not_create_it(run_command, tmp_path, command):
    arguments, expected = NEEDS_NONE[command]
    code, _, err = run_command(*command.split(), *arguments, "--data", "elsewhere")
    assert code == expected, err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("config",), ("models", "list")], ids=" ".join)
def test_a_command_that_only_reads_says_that_the_folder_does_not_exist(run_command, tmp_path, command):
    code, _, err = run_command(*command, "--data", "elsewhere")
    assert code == 0
    assert err == f"data folder: {tmp_path / 'elsewhere'} (does not exist yet; `filmgate serve` creates it)\n"


def test_a_service_on_postgresql_needs_no_data_folder(run_command, tmp_path, monkeypatch):
    monkeypatch.setenv("FILMGATE_QUEUE__URL", "postgresql://127.0.0.1/filmgate")
    code, _, err = run_command("config", "--data", "elsewhere")
    assert (code, err) == (0, f"data folder: {tmp_path / 'elsewhere'}\n")


def test_the_given_folder_is_the_one_that_is_used(run_command, tmp_path):
    folder = tmp_path / "mine"
    open_database(QueueSettings(), folder).close()
    FileKeyring(folder / "keys").new_data_key("acme")
    code, out, err = run_command("keys", "rewrap", "acme", "--data", "mine")
    assert (code, err) == (0, "database: mine/filmgate.db\n")
    assert out.startswith("0 prompts and 0 objects rewrapped")
    _, out, _ = run_command("config", "--data", "mine", "--json")
    assert '"data": {"value": "mine", "source": "--data"}' in out
    assert not (tmp_path / "data").exists()


def test_a_migration_names_the_database_that_it_changed(run_command, tmp_path):
    (tmp_path / "mine").mkdir()
    code, out, err = run_command("deploy", "migrate", "--data", "mine")
    assert (code, out, err) == (0, "the schema is up to date\n", "database: mine/filmgate.db\n")
    assert (tmp_path / "mine" / "filmgate.db").is_file()


def test_an_eviction_of_nothing_prints_nothing(run_command):
    assert run_command("models", "evict", "--to", "0")[:2] == (0, "")
