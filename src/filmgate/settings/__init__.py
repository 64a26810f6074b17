"""One frozen tree of settings: filmgate.toml, overridden by FILMGATE_* variables.

A nested key is written `[pipeline] crf = 20` in the file and `FILMGATE_PIPELINE__CRF=20` in the environment.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from filmgate.errors import SettingsError
from filmgate.settings.limits import LimitSettings
from filmgate.settings.operation import AuditSettings, ManagementSettings, SloSettings, TraceSettings
from filmgate.settings.pipeline import PipelineSettings
from filmgate.settings.sections import (
    AdmissionSettings,
    ApiSettings,
    ClassifierSettings,
    ClientSettings,
    ModelSettings,
    PlannerSettings,
    ProviderSettings,
    QueueSettings,
    RoutingSettings,
    Section,
    StoreSettings,
    WorkerSettings,
)
from filmgate.settings.wording import explain, masked

__all__ = [
    "AdmissionSettings",
    "ApiSettings",
    "AuditSettings",
    "ClassifierSettings",
    "ClientSettings",
    "LimitSettings",
    "ManagementSettings",
    "ModelSettings",
    "Origin",
    "PipelineSettings",
    "PlannerSettings",
    "ProviderSettings",
    "QueueSettings",
    "RoutingSettings",
    "Section",
    "Settings",
    "SloSettings",
    "StoreSettings",
    "TraceSettings",
    "WorkerSettings",
    "load_settings",
    "read_settings",
    "setting_keys",
    "with_values",
]

PREFIX = "FILMGATE_"
FILE_VARIABLE = "FILMGATE_CONFIG"
DEFAULT_FILE = Path("filmgate.toml")
# Variables of OpenTelemetry that stand for a setting. The file and FILMGATE_* variables win.
_STANDARD_VARIABLES = {"OTEL_EXPORTER_OTLP_ENDPOINT": "traces.endpoint"}


class Settings(Section):
    """All settings. Each part of the program gets its own section."""

    data: Path = Field(default=Path("data"), description="folder of the embedded database, clips and keys")
    pipeline: PipelineSettings = PipelineSettings()
    queue: QueueSettings = QueueSettings()
    store: StoreSettings = StoreSettings()
    worker: WorkerSettings = WorkerSettings()
    api: ApiSettings = ApiSettings()
    limits: LimitSettings = LimitSettings()
    admission: AdmissionSettings = AdmissionSettings()
    classifier: ClassifierSettings = ClassifierSettings()
    provider: ProviderSettings = ProviderSettings()
    routing: RoutingSettings = RoutingSettings()
    models: ModelSettings = ModelSettings()
    audit: AuditSettings = AuditSettings()
    slo: SloSettings = SloSettings()
    client: ClientSettings = ClientSettings()
    planner: PlannerSettings = PlannerSettings()
    management: ManagementSettings = ManagementSettings()
    traces: TraceSettings = TraceSettings()


@dataclass(frozen=True, slots=True)
class Origin:
    """An effective value and its source, as printed by `filmgate config`."""

    key: str
    value: object
    source: str
    description: str


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The effective settings. Raises SettingsError that names the key and the expected value."""
    settings, _ = read_settings(environ)
    return settings


def read_settings(environ: Mapping[str, str] | None = None) -> tuple[Settings, list[Origin]]:
    """The effective settings and the origin of every value."""
    environ = os.environ if environ is None else environ
    path = Path(environ.get(FILE_VARIABLE, DEFAULT_FILE))
    from_file = _read_file(path, is_required=FILE_VARIABLE in environ)
    from_env = {_env_key(name): value for name, value in environ.items() if _is_ours(name)}
    standard = {key: environ[name] for name, key in _STANDARD_VARIABLES.items() if environ.get(name)}
    sources = {key: name for name, key in _STANDARD_VARIABLES.items() if key in standard}
    sources |= {key: str(path) for key in from_file} | {key: _env_name(key) for key in from_env}
    settings = _validate(standard | from_file | from_env, sources)
    return settings, list(_origins(settings, sources))


def with_values(settings: Settings, given: Mapping[str, object]) -> Settings:
    """The settings with these dotted keys overridden, for command-line options."""
    texts = {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
    effective = {origin.key: origin.value for origin in _origins(settings, {})}
    return _validate(effective | texts, {key: f"--{key.rpartition('.')[2]}" for key in texts})


def setting_keys() -> list[str]:
    """All dotted keys."""
    return [origin.key for origin in _origins(Settings(), {})]


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX) and name != FILE_VARIABLE and not name.startswith("FILMGATE_TEST_")


def _env_key(name: str) -> str:
    return name.removeprefix(PREFIX).lower().replace("__", ".")


def _env_name(key: str) -> str:
    return PREFIX + key.upper().replace(".", "__")


def _read_file(path: Path, *, is_required: bool) -> dict[str, object]:
    try:
        # Editors on Windows put a byte order mark in front.
        return dict(_flatten(tomllib.loads(path.read_text(encoding="utf-8-sig"))))
    except FileNotFoundError as exc:
        if is_required:
            raise SettingsError(f"settings file {path} does not exist", option=FILE_VARIABLE) from exc
        return {}
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror}", option=str(path)) from exc
    except ValueError as exc:  # UnicodeDecodeError or TOMLDecodeError
        raise SettingsError(f"{path} is not a TOML file: {exc}", option=str(path)) from exc


def _flatten(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _validate(values: Mapping[str, object], sources: Mapping[str, str]) -> Settings:
    tree: dict[str, object] = {}
    for key, value in values.items():
        node = tree
        *parents, leaf = key.split(".")
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                raise SettingsError(f"{sources[key]}: {parent} is a value, not a section", option=key)
            node = child
        node[leaf] = value
    try:
        return Settings.model_validate(tree)
    except ValidationError as exc:
        raise _explain(exc, sources) from exc


def _explain(exc: ValidationError, sources: Mapping[str, str]) -> SettingsError:
    first = exc.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    source = next((place for name, place in sources.items() if f"{name}.".startswith(f"{key}.")), "settings")
    if first["type"] == "extra_forbidden":
        from difflib import get_close_matches

        known = setting_keys()
        sections = {name.partition(".")[0] for name in known if "." in name}
        near = get_close_matches(key, [*sections, *known], n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "remove it, and `filmgate config` lists the settings"
        return SettingsError(f"{key} is not a setting (from {source}); {hint}", option=key)
    if first["type"] == "model_type":
        return SettingsError(f"{key} is a section, not a value (from {source})", option=key)
    given = masked(key, first["input"])
    return SettingsError(f"{explain(key, first)}, got {given!r} (from {source})", option=key)


def _origins(node: BaseModel, sources: Mapping[str, str], prefix: str = "") -> Iterator[Origin]:
    for name, field in type(node).model_fields.items():
        key, value = prefix + name, getattr(node, name)
        if isinstance(value, BaseModel):
            yield from _origins(value, sources, f"{key}.")
        else:
            yield Origin(key, value, sources.get(key, "default"), field.description or "")
