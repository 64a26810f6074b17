"""Every `filmgate` command line in the documentation is one that the command line accepts.

The pages of the tutorial run for real (tests/integration/test_tutorial.py and test_readme.py). Commands that
need AWS, a GPU or a large download cannot run here: their options and values are parsed by the real parser.
"""

import re
import shlex
import tomllib

import pytest
import typer
from typer.exceptions import TyperException

from filmgate.cli import app
from filmgate.settings import load_settings
from tests.blocks import ROOT, read_blocks

PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name not in ("adr", "reference")),
]
GUIDES = [page for page in PAGES if page.parent.name in ("tutorial", "how-to")]
COMMAND = typer.main.get_command(app)
ENDS = {"|", ">", ">>", "<", "&&", "||", ";", "&", "2>"}
# Guides for contributors: their blocks show code and files to write, which the tests of those parts cover.
FOR_CONTRIBUTORS = re.compile(
    r"add-a-(column|command|model-family|provider|request-field|screening-language|setting|store)\.md"
)


def command_lines(text):
    """The arguments of every line that starts filmgate, behind variables; without pipes and comments."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True) if "filmgate " in line else []
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words[:1] == ["filmgate"] or words[:1] == [".venv/bin/filmgate"]:
            end = next((index for index, word in enumerate(words) if word in ENDS), len(words))
            yield words[1:end]


def find_command(words):
    """The command of these words and its arguments."""
    command, rest = COMMAND, list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"there is no command {' '.join(words)}"
        command = command.commands[rest.pop(0)]
    return command, rest


def is_pattern(words):
    """Whether the words stand for several commands, as in `filmgate jobs list|show`, or ask for help."""
    is_help = words[-1:] in (["--help"], ["-h"], ["--version"])
    return is_help or any(mark in word for word in words for mark in ("|", "...", "[", "*"))


def show(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("line", ["tenant add x --max-queue 1", "serve --port soon", "route", "paint x"])
def test_a_wrong_command_option_or_value_is_noticed(line):
    with pytest.raises((AssertionError, TyperException)):
        command, rest = find_command(line.split())
        command.make_context("filmgate", rest)


@pytest.mark.parametrize("page", PAGES, ids=show)
def test_every_command_line_in_a_block_is_accepted(page):
    for block in read_blocks(page.read_text()):
        for words in command_lines(block.text) if block.language in ("sh", "") else ():
            if is_pattern(words):
                continue
            command, rest = find_command(words)
            assert command.make_context("filmgate", rest), words


@pytest.mark.parametrize("page", PAGES, ids=show)
def test_every_command_in_a_sentence_exists_with_its_options(page):
    for text in re.findall(
        r"`(filmgate [^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    ):
        words = shlex.split(text)[1:]
        if is_pattern(words):
            continue
        command, rest = find_command(words)
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        named = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert named <= known | {"-h", "--help"}, text


@pytest.mark.parametrize("page", [p for p in GUIDES if not FOR_CONTRIBUTORS.match(p.name)], ids=show)
def test_every_block_of_a_guide_runs_is_read_or_says_why_it_cannot_run(page, tmp_path):
    """TOML of settings is read by the loader; `yaml` belongs to other programs."""
    for block in read_blocks(page.read_text()):
        if block.reason or block.language == "python":
            continue
        if block.language == "toml":
            values = tomllib.loads(block.text)
            if not any("location" in table for table in values.values()):  # of adapters: test_adapters.py
                (tmp_path / "filmgate.toml").write_text(block.text)
                assert load_settings({"FILMGATE_CONFIG": str(tmp_path / "filmgate.toml")})
        elif block.language == "sh":
            lines = block.text.replace("\\\n", " ").splitlines()
            assert all(line.startswith(("filmgate ", ".venv/bin/filmgate ", "#")) for line in lines), lines
        else:
            assert block.language == "yaml", block


def sentence_commands(text):
    """The arguments of every command that a sentence names, such as `filmgate tenant list`."""
    for line in re.findall(r"`(?:\.venv/bin/)?filmgate ([^`\n]+)`", text):
        if not is_pattern(words := shlex.split(line)):
            yield words


def problems_of(words):
    """Options that the command does not have, and arguments of a command that takes none."""
    command, rest = find_command(words)
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    takes_some = any(each.param_type_name == "argument" for each in command.params)
    options = [word for word in rest if word.startswith("-") and word != "-"]
    unknown = [word for word in options if word.partition("=")[0] not in known]
    return unknown or ([] if takes_some or options or hasattr(command, "commands") else rest)


def test_a_wrong_command_in_a_sentence_is_noticed():
    wrong = ["`filmgate aws policy ACCOUNT`", "`filmgate tenant list --nosuch`"]
    assert [problems_of(words) for line in wrong for words in sentence_commands(line)] == [
        ["ACCOUNT"],
        ["--nosuch"],
    ]


@pytest.mark.parametrize("page", PAGES, ids=show)
def test_a_command_in_a_sentence_has_the_options_it_names(page):
    wrong = {" ".join(words): problems_of(words) for words in sentence_commands(page.read_text())}
    assert {line: found for line, found in wrong.items() if found} == {}
