"""Writes pages from code: commands, HTTP routes, the Python API, errors, settings, metrics. `make docs`."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer.main
from docs.reference.remedies import REMEDIES
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

import filmgate
from filmgate import client
from filmgate.api.app import PARTS
from filmgate.api.problems import PROBLEMS
from filmgate.cli import app as command_line
from filmgate.errors import FilmgateError
from filmgate.settings import Settings
from filmgate.telemetry.metrics import METRICS, Metric, Source

_WRITTEN = "`make docs` writes this page from the code."
_METHODS = ("get", "post", "put", "patch", "delete")


def commands_page() -> str:
    """Every command with its arguments and options."""
    root = typer.main.get_command(command_line)
    assert isinstance(root, TyperGroup)
    parts = [f"# Commands\n\n{_WRITTEN} [The command line](../cli.md) explains output and exit codes.\n"]
    parts += [_command_section(name, command) for name, command in _leaves(root, "filmgate")]
    return "\n".join(parts)


def _leaves(group: TyperGroup, prefix: str) -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """The commands that do something, such as `filmgate slo`, which also has subcommands."""
    for name in group.list_commands(typer.Context(group)):
        command = group.commands[name]
        if command.hidden:
            continue
        if isinstance(command, TyperGroup):
            if command.invoke_without_command:
                yield f"{prefix} {name}", command
            yield from _leaves(command, f"{prefix} {name}")
        elif isinstance(command, TyperCommand):
            yield f"{prefix} {name}", command


def _command_section(name: str, command: TyperCommand | TyperGroup) -> str:
    known = (each for each in command.params if isinstance(each, TyperArgument | TyperOption))
    shown = [each for each in known if not each.hidden and each.name != "help"]
    context = typer.Context(command)
    is_group = isinstance(command, TyperGroup)
    arguments = "" if is_group else " ".join(command.collect_usage_pieces(context)[1:])
    records = filter(None, (each.get_help_record(context) for each in shown))
    rows = "".join(f"| `{_cell(names)}` | {_cell(text)} |\n" for names, text in records)
    table = f"\n| parameter | meaning |\n|---|---|\n{rows}" if shown else ""
    options = " [OPTIONS]" if any(isinstance(each, TyperOption) for each in shown) else ""
    return (
        f"## {name}\n\n    {name} {arguments}".rstrip() + f"{options}\n\n{_paragraphs(command.help)}\n{table}"
    )


def http_page() -> str:
    """Every route with its parameters, body and response."""
    app = FastAPI(title="Filmgate", version=filmgate.__version__)
    for part in PARTS:
        app.include_router(part.router)
    schema = app.openapi()
    intro = (
        f"# HTTP API\n\n{_WRITTEN} A running server shows the same at `/docs`, and the schema at "
        "`/openapi.json`. [Errors](errors.md) lists every code; [the API](../request/01-api.md) explains.\n"
    )
    parts = [intro]
    for path, methods in schema["paths"].items():
        parts += [
            _route_section(method.upper(), path, methods[method], schema)
            for method in _METHODS
            if method in methods
        ]
    return "\n".join([*parts, "## Objects\n", *_objects(schema["components"]["schemas"])])


def _route_section(method: str, path: str, route: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    rows = [
        (f"`{each['name']}` ({each['in']})", each.get("description") or _schema_text(each["schema"]))
        for each in route.get("parameters", ())
    ]
    for content in list(route.get("requestBody", {}).get("content", {}).values())[:1]:
        fields = _resolve(content.get("schema", {}), schema).get("properties", {})
        rows += [
            (f"`{name}` (body)", value.get("description") or _schema_text(value))
            for name, value in fields.items()
        ]
    table = "".join(f"| {name} | {_cell(text)} |\n" for name, text in rows)
    listed = f"\n| parameter | meaning |\n|---|---|\n{table}" if rows else ""
    answer = route["responses"].get("200") or route["responses"].get("201") or {}
    returned = _schema_text(answer.get("content", {}).get("application/json", {}).get("schema", {}))
    returns = f"\nReturns {returned}.\n" if returned else ""
    text = _paragraphs(route.get("description") or route["summary"])
    return f"## {method} {path}\n\n{text}\n{listed}{returns}"


def _objects(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items()):
        fields, text = schema.get("properties"), _paragraphs(schema.get("description", ""))
        if "enum" in schema:
            yield f"### {name}\n\n{text}\n\nOne of {_schema_text(schema)}.\n"
        if not fields or name.startswith(("Body_", "HTTPValidation")):
            continue
        rows = "".join(
            f"| `{field}` | {_cell(_schema_text(value))} | {_cell(value.get('description', ''))} |\n"
            for field, value in fields.items()
        )
        yield f"### {name}\n\n{text}\n\n| field | type | meaning |\n|---|---|---|\n{rows}"


def _resolve(found: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in found:
        return found
    resolved: Mapping[str, Any] = schema["components"]["schemas"][found["$ref"].rpartition("/")[2]]
    return resolved


def _schema_text(found: Mapping[str, Any]) -> str:
    if "$ref" in found:
        name = found["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in found:
        return " or ".join(_schema_text(each) for each in found["anyOf"])
    if "enum" in found or "const" in found:
        return ", ".join(f"`{value}`" for value in found.get("enum", [found.get("const")]))
    if found.get("type") == "array":
        return f"list of {_schema_text(found.get('items', {})) or 'values'}"
    return str(found.get("type", ""))


def python_page() -> str:
    """The functions of the package and the client."""
    intro = (
        f"# Python API\n\n{_WRITTEN} [The Python client](../client.md) has examples. `AsyncFilmgate` has the "
        "same methods as `Filmgate`: each is awaited, `events` and `stream` are asynchronous iterators.\n"
    )
    functions = [_function("filmgate", getattr(filmgate, name)) for name in filmgate.__all__]
    types: list[type] = [client.Video, client.VideoList, client.RequestFailed, client.VideoFailed]
    return "\n".join(
        [
            intro,
            "## filmgate\n",
            *functions,
            "## filmgate.client\n",
            *_methods(client.Filmgate),
            *map(_type_section, types),
        ]
    )


def _methods(kind: type) -> Iterator[str]:
    yield f"### {kind.__name__}\n\n{_code(kind.__name__, kind)}{_paragraphs(inspect.getdoc(kind))}\n"
    for name, method in inspect.getmembers(kind):
        if not name.startswith("_") and callable(method):
            yield _function(kind.__name__, method)


def _function(owner: str, function: Callable[..., Any]) -> str:
    text = _paragraphs(inspect.getdoc(function) or "Close the connections.")
    name = f"{owner}.{function.__name__}"
    return f"### {name}\n\n{_code(name, function)}{text}\n"


def _code(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    kept = [each for each in signature.parameters.values() if each.name != "self"]
    text = str(signature.replace(parameters=kept))
    # Qualified names, and quotes around deferred annotations, tell a reader nothing.
    text = re.sub(r"(?:[a-z_]+\.)+(?=[A-Z])", "", text)
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return f"    {name}{text}\n\n"


def _type_section(kind: type) -> str:
    fields = getattr(kind, "__dataclass_fields__", {})
    rows = "".join(f"| `{name}` | `{_type_name(field.type)}` |\n" for name, field in fields.items())
    table = f"\n| field | type |\n|---|---|\n{rows}" if rows else ""
    return f"### {kind.__name__}\n\n{_paragraphs(inspect.getdoc(kind))}\n{table}"


def _type_name(found: Any) -> str:
    name = found.__name__ if isinstance(found, type) and not hasattr(found, "__args__") else str(found)
    return re.sub(r"(?:[a-z_]+\.)+(?=[A-Z])", "", name).replace("|", "\\|")


def errors_page() -> str:
    """Every error with its code, HTTP status, meaning and remedy."""
    intro = (
        f'# Errors\n\n{_WRITTEN} The API returns `{{"error": {{"message", "type", "param", "code"}}}}`; the '
        "command line prints the message. A failed video has the code in `error.code`. `retry` says whether "
        "the same call may succeed later.\n\n"
        "| code | HTTP | meaning | remedy | retry |\n|---|---|---|---|---|\n"
    )
    by_code: dict[str, type[FilmgateError]] = {}
    for kind in _subclasses(FilmgateError):
        by_code.setdefault(kind.code, kind)
    return intro + "".join(_error_row(code, by_code[code]) for code in sorted(by_code))


def _error_row(code: str, kind: type[FilmgateError]) -> str:
    status = next((PROBLEMS[base].status for base in kind.__mro__ if base in PROBLEMS), 500)
    meaning = _cell(inspect.getdoc(kind) or "")
    return f"| `{code}` | {status} | {meaning} | {REMEDIES[code]} | {'yes' if kind.retryable else 'no'} |\n"


def _subclasses(kind: type[FilmgateError]) -> Iterator[type[FilmgateError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _paragraphs(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("\f", "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("\\\\|", "\\|")


_SETTINGS = """\
# Settings

Filmgate reads `filmgate.toml` in the working folder, or the file that `FILMGATE_CONFIG` names, and then
the environment. Variables override the file. The setting `pipeline.crf` is `[pipeline] crf = 20` in the file
and `FILMGATE_PIPELINE__CRF=20` in the environment. An unknown key or an invalid value stops the start.
`filmgate config` prints every effective value and its source.

`make docs` writes this page. [Add a setting](how-to/add-a-setting.md) lists the steps.
"""


def settings_page() -> str:
    """Every setting with its default and limits."""
    default = Settings()
    top = {name: field for name, field in Settings.model_fields.items() if not _is_section(default, name)}
    tables = [_settings_table("", top, default)]
    for name in Settings.model_fields:
        if _is_section(default, name):
            section = getattr(default, name)
            heading = f"## {name}\n\n{inspect.getdoc(type(section))}\n\n"
            tables.append(heading + _settings_table(f"{name}.", type(section).model_fields, section))
    return "\n".join((_SETTINGS, *tables))


def _is_section(settings: Settings, name: str) -> bool:
    return isinstance(getattr(settings, name), BaseModel)


def _settings_table(prefix: str, fields: dict[str, FieldInfo], values: BaseModel) -> str:
    rows = (
        f"| `{prefix}{name}` | {_default(getattr(values, name))} | {_limits(field)} | {field.description} |\n"
        for name, field in fields.items()
    )
    return "| key | default | values | description |\n|---|---|---|---|\n" + "".join(rows)


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`" if value < 1e6 else f"`{value:.0f}`"
    return f"`{value}`" if str(value) else "empty"


def _limits(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    if field.annotation is bool:
        return "`true`, `false`"
    return ", ".join(_bounds(field))


def _bounds(field: FieldInfo) -> Iterator[str]:
    for bound in field.metadata:
        for name, text in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
            if (value := getattr(bound, name, None)) is not None:
                yield f"{text} {value:g}" if value < 1e6 else f"{text} {value:.0f}"


_METRICS = """\
# Metrics

Servers and workers export Prometheus metrics on their [management port](operate/monitor.md#management-port).
`make docs` writes this page from `src/filmgate/telemetry/metrics.py`.

| label | values |
|---|---|
| `model` | the name that clients use |
| `version` | the first 12 digits of the SHA-256 of the weights; at a provider, the provider's model |
| `route` | `gpu`: your GPUs; `managed`: a provider |
| `tenant` | the tenant; empty in histograms if there are more than `management.max_tenants` tenants |
| `gpu` | the UUID of the GPU: DCGM's label `UUID` |

Job metrics are counted in the database, in the transactions that cause them
([ADR 14](adr/0014-job-metrics-are-in-the-database.md)): every replica reports the whole service. Take the
maximum over replicas, never the sum: `max without (instance, pod) (...)`. Worker metrics belong to one
process: sum them. The histograms of a version are deleted after 100 days without an observation.
"""

_DCGM = """
## GPU metrics and DCGM

A worker reads its GPU through NVML, so a machine needs no DCGM exporter. Where one runs, both report the
same values under these names. `deploy/dcgm-counters.csv` is a counters file for the exporter
(`dcgm-exporter -f`) with every field of this table. In the file that the exporter comes with, the ECC
counters are commented out and the clock events are missing. `filmgate slo rules --gpu-metrics dcgm` prints
the alerts on GPUs with the exporter's names.

| Filmgate | DCGM exporter |
|---|---|
"""


def metrics_page() -> str:
    """Every metric by the process that exports it, and the GPU metrics of DCGM."""
    tables = [_metrics_table(source) for source in Source]
    fields = "".join(
        f"| `{metric.name}` | {_dcgm_field(metric.dcgm)} |\n" for metric in METRICS if metric.dcgm
    )
    return "\n".join((_METRICS, *tables)) + _DCGM + fields


def _metrics_table(source: Source) -> str:
    rows = "".join(_metric_row(metric) for metric in METRICS if metric.source is source)
    title = source.value[0].upper() + source.value[1:]
    return f"## {title}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n{rows}"


def _metric_row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |\n"


def _dcgm_field(field: str) -> str:
    name, _, unit = field.partition(" ")
    return f"`{name}` {unit}".rstrip()


PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": commands_page,
    "http.md": http_page,
    "python.md": python_page,
    "errors.md": errors_page,
    "../settings.md": settings_page,
    "../metrics.md": metrics_page,
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page())
