"""The end of a process that has loaded torch."""

import subprocess
import sys

PROGRAM = """
import atexit, sys
from filmgate.cli.quick_exit import quick_exit

class Freed:
    def __del__(self):
        print("freed")

with quick_exit():
    atexit.register(print, "handler")
    kept = Freed()
    if sys.argv[1] == "with torch":
        sys.modules["torch"] = sys
    print("work")
    sys.exit(3)
"""


def run(argument):
    command = [sys.executable, "-c", PROGRAM, argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.split(), done.stderr


def test_with_torch_exit_handlers_run_and_nothing_is_freed():
    assert run("with torch") == (3, ["work", "handler"], "")


def test_without_torch_the_interpreter_ends_as_usual():
    assert run("without") == (3, ["work", "handler", "freed"], "")
