"""`filmgate worker`: the names of its models and its exit codes."""

import pytest
import typer

from filmgate.cli import run_command
from filmgate.cli.worker import find_models
from filmgate.errors import DeviceBroken, DeviceDrifted, DeviceError, SettingsError, UsageError
from filmgate.models.names import name_model


@pytest.mark.parametrize(
    ("given", "models"),
    [
        (["flipbook"], {"flipbook": "flipbook"}),
        (["/models/wan"], {"wan": "/models/wan"}),
        (["/models/wan/"], {"wan": "/models/wan/"}),
        (["Some-Team/Film1.0-T2V"], {"Film1.0-T2V": "Some-Team/Film1.0-T2V"}),
        (["Some-Team/Film@abc123"], {"Film": "Some-Team/Film@abc123"}),
        (["wan=/models/2.1", "tiny=miniature"], {"wan": "/models/2.1", "tiny": "miniature"}),
    ],
)
def test_a_model_without_a_name_is_called_by_its_last_part(given, models):
    assert {model.name: model.location for model in map(name_model, given)} == models


@pytest.mark.parametrize("given", ["wan+film=miniature", "wan+film"])
def test_a_model_that_no_request_could_name_is_an_error(given, tmp_path, monkeypatch):
    """`"model": "wan+film"` means the adapter film of the model wan."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wan+film").mkdir()
    (tmp_path / "wan+film" / "model_index.json").touch()
    with pytest.raises(UsageError, match=r"the name wan\+film contains \+"):
        find_models([given])


def test_two_models_of_one_name_are_an_error_unless_they_are_the_same():
    assert find_models(["flipbook", "tiny=miniature", "flipbook"]) == {
        "flipbook": "flipbook",
        "tiny": "miniature",
    }
    with pytest.raises(UsageError, match="two models have the name tiny"):
        find_models(["tiny=miniature", "tiny=flipbook"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DeviceBroken("GPU-1 cannot be trusted", fault="double_bit_error", clean_until=0.0), 3),
        (DeviceDrifted("the weights have changed"), 4),
        (DeviceError("no GPU"), 1),
        (SettingsError("wrong"), 2),
    ],
)
def test_a_supervisor_can_tell_a_broken_gpu_from_other_failures_by_the_exit_code(error, code, capsys):
    command = typer.Typer()

    @command.command()
    def fail():
        raise error

    with pytest.raises(SystemExit) as ended:
        run_command(command, [])
    assert ended.value.code == code
    assert str(error) in capsys.readouterr().err
