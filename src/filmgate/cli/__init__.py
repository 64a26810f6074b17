"""The `filmgate` command: one file per subcommand, each thin (parse, call, print)."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from filmgate import __version__
from filmgate.cli import (
    audit,
    aws,
    backup,
    bench,
    config,
    deploy,
    doctor,
    generate,
    jobs,
    keys,
    models,
    plan,
    route,
    serve,
    slo,
    tenant,
    worker,
)
from filmgate.cli.help import PlainHelpGroup
from filmgate.cli.parse_errors import PARSE_ERROR, describe
from filmgate.errors import FilmgateError, InvalidField, UnsupportedOperation, UnsupportedValue, UsageError
from filmgate.telemetry.findings import INSTALL_WORKER, WORKER_MODULES

# The order in which people need the commands. Others follow by name.
ORDER = (
    "generate",
    "serve",
    "worker",
    "jobs",
    "models",
    "tenant",
    "plan",
    "doctor",
    "config",
    "bench",
    "slo",
    "route",
    "audit",
    "keys",
    "backup",
    "restore",
    "deploy",
    "aws",
)


class OrderedGroup(PlainHelpGroup):
    """Lists commands in ORDER; typer would list groups after commands."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # noqa: ARG002
        known = [name for name in ORDER if name in self.commands]
        return known + sorted(self.commands.keys() - set(known))


app = typer.Typer(
    name="filmgate",
    help="Self-hosted video generation on your own GPUs, with an OpenAI-compatible API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=OrderedGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("generate")(generate.generate)
app.command("serve", short_help="Serve the API with a queue, a store and a worker.")(serve.run_server)
app.command("worker")(worker.worker)
app.add_typer(jobs.jobs, name="jobs", cls=PlainHelpGroup)
app.add_typer(models.models, name="models", cls=PlainHelpGroup)
app.add_typer(tenant.tenant, name="tenant", cls=PlainHelpGroup)
app.add_typer(keys.keys, name="keys", cls=PlainHelpGroup)
app.command("backup", short_help="Back up the database, and the keys into a separate folder.")(
    backup.back_up_installation
)
app.command("restore", short_help="Restore a backup and check it.")(backup.restore_installation)
app.add_typer(plan.app, cls=PlainHelpGroup)
app.command("doctor", short_help="Check this machine and print a remedy for every problem.")(doctor.doctor)
app.command("config")(config.show_config)
app.add_typer(bench.bench, name="bench", cls=PlainHelpGroup)
app.add_typer(slo.slo, name="slo", cls=PlainHelpGroup)
app.add_typer(audit.audit, name="audit", cls=PlainHelpGroup)
app.command("route", short_help="Explain why a job runs on your GPUs or at the managed provider.")(
    route.show_route
)
app.add_typer(aws.aws, name="aws", cls=PlainHelpGroup)
app.add_typer(deploy.deploy, name="deploy", cls=PlainHelpGroup)


def _print_version(is_given: bool) -> None:  # noqa: FBT001 - a typer callback
    if is_given:
        typer.echo(f"filmgate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


_FLAGS = {
    "prompt": "PROMPT",
    "negative_prompt": "--negative",
    "input_reference": "--image",
    "pixel_format": "--pixel-format",
}


def name_flag(error: UsageError) -> str | None:
    """The flag of a request field; other options (settings, flags) are named as they are."""
    if not isinstance(error, InvalidField | UnsupportedValue | UnsupportedOperation) or error.option is None:
        return error.option
    return _FLAGS.get(error.option, f"--{error.option.removeprefix('--')}")


def describe_os_error(error: OSError) -> str | None:
    """What the user can do about it; None for an error of the program."""
    if error.errno == errno.ENOSPC:
        return "the disk is full; free some space and run the command again"
    if error.filename is None:
        return None
    return f"{error.filename}: {error.strerror}; check the path and its permissions"


def main() -> None:
    """Run the `filmgate` command line."""
    run_command(app)


def run_command(command: typer.Typer, arguments: Sequence[str] | None = None) -> None:
    """Run a command line. An error is one line on stderr, without a traceback where the user has the remedy.

    `arguments` are those of the process by default.

    Exit codes: 0 success, 1 failure, 2 bad usage; typer makes Ctrl-C 130. A worker exits with 3 if its GPU is
    broken, and with 4 if its GPU or its weights have changed.
    """
    # OpenMP reads these when torch is imported. Threads that spin while they wait take cores from other work.
    # A few microseconds of spinning cost little and save a quarter of the denoising time on an idle machine.
    if os.environ.setdefault("OMP_WAIT_POLICY", "passive").lower() == "passive":
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    try:
        # typer would print its usage and two more lines before an error of its parser.
        sys.exit(command(arguments, command.info.name, standalone_mode=False) or 0)
    except PARSE_ERROR as exc:
        message, is_help = describe(exc)
        typer.echo(message if is_help else f"error: {message}", err=True)
        sys.exit(2)
    except FilmgateError as exc:
        flag = name_flag(exc) if isinstance(exc, UsageError) else None
        option = f"{flag}: " if flag and not str(exc).startswith(flag) else ""
        typer.echo(f"error: {option}{exc}", err=True)
        sys.exit(exc.exit_code)
    except ModuleNotFoundError as exc:
        if exc.name not in WORKER_MODULES:
            raise
        typer.echo(f"error: {exc.name} is not installed; {INSTALL_WORKER}", err=True)
        sys.exit(1)
    except OSError as exc:
        if (known := describe_os_error(exc)) is None:
            raise
        typer.echo(f"error: {known}", err=True)
        sys.exit(1)
    except typer.Abort:
        typer.echo("aborted", err=True)
        sys.exit(1)
