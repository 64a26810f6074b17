"""The `filmgate` command: imports, settings, exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from filmgate.cli import ORDER, app, run_command

ROOT = Path(__file__).parents[2]


def filmgate(*arguments, cwd=None, **environ):
    return subprocess.run(
        [sys.executable, "-m", "filmgate", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environ},
        timeout=120,
        check=False,
    )


INTERRUPTED = """
import os, signal, sys

# A process that a shell started in the background ignores Ctrl-C, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv, module = ["filmgate", "config"], sys.argv[1]

class Finder:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from filmgate.__main__ import run

run()
"""


@pytest.mark.parametrize("module", ["typer", "filmgate.settings"], ids=["at its start", "in a command"])
def test_an_interrupted_command_prints_no_traceback(module):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


WITHOUT_WORKER = """
import re, sys
from importlib.metadata import requires

extra = [each for each in requires("filmgate") if each.endswith("extra == 'worker'")]
missing = {re.match("[a-z-]+", each)[0].replace("nvidia-ml-py", "pynvml") for each in extra}

class Finder:
    def find_spec(self, name, *_):
        if name in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Finder())
from filmgate.__main__ import run

run()
"""


@pytest.mark.parametrize("command", ["worker --model flipbook", "bench service"])
def test_a_command_without_its_extra_names_the_extra(command, tmp_path):
    (tmp_path / "data").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_WORKER, *command.split()],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.fullmatch(
        r"error: \w+ is not installed; in the source folder, run: pip install '\.\[worker\]'",
        done.stderr.splitlines()[-1],
    )
    assert "Traceback" not in done.stderr


def test_help_imports_only_command_line_libraries():
    """Other libraries would make `--help` slow."""
    code = (
        "import atexit, sys\n"
        "found = set(sys.modules)\n"  # .pth files of the environment may import modules at startup
        "import filmgate.cli\n"
        "new = lambda: {name.partition('.')[0] for name in sys.modules.keys() - found}\n"
        "atexit.register(lambda: print(*new(), file=sys.stderr))\n"
        "sys.argv = ['filmgate', '--help']\n"
        "filmgate.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    others = set(done.stderr.split()) - set(sys.stdlib_module_names) - {"__main__"}
    command_line = {"typer", "click", "rich", "shellingham", "annotated_doc", "typing_extensions"}
    assert others <= {"filmgate"} | command_line


def test_importing_filmgate_or_its_command_line_imports_no_torch():
    heavy = "('torch', 'av', 'numpy', 'PIL')"
    code = f"import sys, filmgate, filmgate.cli; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_public_surface_is_three_functions():
    import filmgate

    assert sorted(filmgate.__all__) == ["generate", "save_video", "stream_frames"]


def test_config_prints_every_value_and_its_origin():
    done = filmgate("config", "--json", FILMGATE_PIPELINE__CRF="21")
    values = json.loads(done.stdout)
    assert values["pipeline.crf"] == {"value": 21, "source": "FILMGATE_PIPELINE__CRF"}
    assert values["pipeline.codec"]["source"] == "default"


def test_config_fits_a_terminal_and_prints_values_as_in_the_file(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        run_command(app, ["config"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert {'pipeline.codec = "h264"  (default)', "api.open = false  (default)"} <= set(lines)


def test_config_refuses_objectives_that_serve_refuses():
    done = filmgate("config", FILMGATE_SLO__CLASSES="short")
    assert done.returncode == 2
    assert "slo.classes: 'short' is not NAME=WIDTHxHEIGHT/SECONDS:OBJECTIVE" in done.stderr
    assert done.stdout == ""


def test_an_invalid_setting_is_one_line_on_stderr_and_exit_code_2():
    done = filmgate("config", FILMGATE_PIPELINE__CRFF="21")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "did you mean pipeline.crf?" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
def test_a_full_disk_is_one_line_on_stderr_and_exit_code_1():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "filmgate", "slo", "rules"]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: the disk is full; ")


@pytest.mark.parametrize(
    "arguments", [("generate",), ("paint", "a cat"), ("generate", "a cat", "--seconds", "soon")]
)
def test_wrong_usage_is_exit_code_2(arguments):
    assert filmgate(*arguments).returncode == 2


def test_the_page_of_the_command_line_lists_every_command():
    page = (ROOT / "docs/cli.md").read_text()
    listed = set(re.findall(r"^\| `filmgate (\w+)`", page, re.MULTILINE))
    assert listed == set(typer.main.get_command(app).commands)


def helps(command, parent=None):
    """The help of a command and of all below it, in a terminal of 80 columns."""
    context = typer.Context(command, info_name=command.name, parent=parent, terminal_width=80)
    yield command.get_help(context)
    for child in getattr(command, "commands", {}).values():
        yield from helps(child, context)


def test_help_names_values_in_words_not_in_python_types():
    lines = [line for text in helps(typer.main.get_command(app)) for line in text.splitlines()]
    assert [line for line in lines if re.search(r"<\w+|x[<>]=|Usage: .*\{", line)] == []
    assert [line for line in lines if len(line) > 80] == []
    generate = filmgate("generate", "-h").stdout
    assert "[OPTIONS] [PROMPT]" in generate
    for option in ("--model MODEL", "--size WIDTHxHEIGHT", "--seed N", "--output FILE", "--data FOLDER"):
        assert option in generate
    assert "[default: 1; at least 1]" in generate


def test_no_line_of_any_help_is_cut():
    """Also in a terminal of 80 columns."""
    lists = [text.partition("Commands:")[2] for text in helps(typer.main.get_command(app))]
    assert len([text for text in lists if text]) > 5
    assert [text for text in lists if "..." in text] == []


def test_help_lists_commands_in_the_order_people_need_them():
    shown = filmgate("-h").stdout
    listed = re.findall(r"^  (\w+)  ", shown.partition("Commands:")[2], re.MULTILINE)
    assert listed[:9] == list(ORDER[:9])
    assert filmgate("jobs", "-h").returncode == 0
    assert "..." not in shown.partition("Commands:")[2]


@pytest.mark.parametrize("given", [None, "active"])
def test_openmp_threads_wait_passively_unless_the_user_says_otherwise(monkeypatch, given):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, given or "")
    monkeypatch.delenv("GOMP_SPINCOUNT")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    with pytest.raises(SystemExit):
        run_command(app, ["--version"])
    assert os.environ["OMP_WAIT_POLICY"] == (given or "passive")
    assert os.environ.get("GOMP_SPINCOUNT") == (None if given == "active" else "2000")


def test_version_is_the_package_version():
    from filmgate import __version__

    assert filmgate("--version").stdout.strip() == f"filmgate {__version__}"
