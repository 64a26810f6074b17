"""The `filmgate` command line with a given data folder."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from filmgate.cli import main


def run_filmgate(folder, *arguments, **environ):
    """Run `filmgate ARGUMENTS` in this process; returns exit code, stdout and stderr."""
    command = ["filmgate", *arguments]
    output, errors = io.StringIO(), io.StringIO()
    environment = mock.patch.dict(os.environ, environ | {"FILMGATE_DATA": str(folder)})
    arguments = mock.patch.object(sys, "argv", command)
    with environment, arguments, redirect_stdout(output), redirect_stderr(errors):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    return subprocess.CompletedProcess(command, code, output.getvalue(), errors.getvalue())
