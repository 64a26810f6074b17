"""Every benchmark reports the same way: one JSON line, and errors as `filmgate` prints them."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import make_app, make_report, print_report
from filmgate.cli import run_command
from filmgate.cli.bench import bench

ROOT = Path(__file__).parents[2]
BENCHMARKS = sorted(path.stem for path in (ROOT / "benchmarks").glob("bench_*.py"))
# A command of `filmgate bench`, and one that runs where only torch is installed.
OTHER_COMMAND_LINES = {"bench_pipeline", "bench_roofline"}


def test_a_report_names_commit_machine_settings_results_and_ratios():
    report = make_report("x", {"rounds": 1}, {"seconds": 2.0}, {"to_baseline": 0.5})
    assert {"commit", "machine", "cores", "python"} <= set(report)
    assert report["settings"] == {"rounds": 1}
    assert (report["results"], report["ratios"]) == ({"seconds": 2.0}, {"to_baseline": 0.5})


@pytest.mark.parametrize(("is_json", "is_one_line"), [(True, True), (False, False)])
def test_a_report_is_one_line_or_indented(capsys, is_json, is_one_line):
    print_report("x", {}, {}, {}, is_json=is_json)
    assert (len(capsys.readouterr().out.splitlines()) == 1) is is_one_line


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_can_be_imported_and_says_what_it_measures(name):
    assert importlib.import_module(f"benchmarks.{name}").__doc__


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name not in OTHER_COMMAND_LINES])
def test_the_help_of_a_benchmark_says_how_it_is_run(name, capsys):
    main = importlib.import_module(f"benchmarks.{name}").main
    with pytest.raises(SystemExit, match="0"):
        run_command(make_app(main), ["--help"])
    assert capsys.readouterr().out.startswith(f"Usage: python -m benchmarks.{name} [OPTIONS]")


def test_the_docs_name_benchmarks_that_exist():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    commands = {command.name for command in bench.registered_commands}
    assert set(re.findall(r"filmgate bench (\w+)", text)) <= commands
    assert set(re.findall(r"\b(bench_\w+)", text)) <= {*BENCHMARKS, "bench_NAME"}


def test_an_error_is_one_line_with_the_flag_and_exit_code_2():
    command = [sys.executable, "-m", "benchmarks.bench_queue", "--engines", "oracle"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --engines: ")
    assert len(done.stderr.splitlines()) == 1
