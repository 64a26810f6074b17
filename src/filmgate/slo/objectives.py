"""Which objective a clip has: by class of clip and by tenant. Pure; the settings are parsed once."""

from collections.abc import Mapping
from dataclasses import dataclass

from filmgate.errors import InvalidField, SettingsError
from filmgate.jobs import TENANT_ID_PATTERN, Size, VideoSpec
from filmgate.settings import SloSettings
from filmgate.tenants.base import PartialObjective, Tenant

DEFAULT_CLASS = "default"
# Models round lengths and sizes to whole latent frames and blocks: 5 s may be 5.06 s.
_TOLERANCE = 1.05
_CLASSES, _TENANTS = "slo.classes", "slo.tenants"
_NOT_SET = PartialObjective()


@dataclass(frozen=True, slots=True)
class Objective:
    """A share `target` of the clips of this class is ready within `seconds` of their acceptance."""

    name: str
    seconds: float
    target: float


@dataclass(frozen=True, slots=True)
class ClipClass:
    """Clips up to a size and a length."""

    name: str
    pixels: int
    clip_seconds: float
    objective: PartialObjective

    def fits(self, spec: VideoSpec) -> bool:
        is_small = spec.clip_size.pixels <= self.pixels * _TOLERANCE
        return is_small and spec.seconds <= self.clip_seconds * _TOLERANCE


@dataclass(frozen=True, slots=True)
class Objectives:
    """The objectives of an installation. `tenants` is by tenant and class name, "" for all classes."""

    default: Objective
    classes: tuple[ClipClass, ...]
    tenants: Mapping[tuple[str, str], PartialObjective]

    def of(self, tenant: Tenant, spec: VideoSpec) -> Objective:
        """The objective of a clip, which belongs to the first class it fits into."""
        fitting = (known.name for known in self.classes if known.fits(spec))
        return self.resolve(next(fitting, DEFAULT_CLASS), tenant)

    def resolve(self, name: str, tenant: Tenant | None = None) -> Objective:
        """The objective of a class: what the tenant has, then what the class has, then the default."""
        by_class = {known.name: known.objective for known in self.classes}
        layers = [by_class.get(name, _NOT_SET)]
        if tenant is not None:
            settings = (self.tenants.get((tenant.id, own), _NOT_SET) for own in (name, ""))
            layers = [tenant.objective, *settings, *layers]
        seconds = (layer.seconds for layer in layers if layer.seconds is not None)
        target = (layer.target for layer in layers if layer.target is not None)
        return Objective(name, next(seconds, self.default.seconds), next(target, self.default.target))


def parse_objectives(settings: SloSettings, default_seconds: float) -> Objectives:
    """Raises SettingsError that names the setting and the entry which cannot be read."""
    classes = tuple(_parse_class(entry) for entry in _split(settings.classes))
    names = {known.name for known in classes} | {DEFAULT_CLASS}
    if len(names) != len(classes) + 1:
        raise SettingsError("two classes have the same name, or one is named default", option=_CLASSES)
    tenants: dict[tuple[str, str], PartialObjective] = {}
    for entry in _split(settings.tenants):
        whom, separator, objective = entry.partition("=")
        tenant, _, name = whom.strip().partition("/")
        is_known = TENANT_ID_PATTERN.fullmatch(tenant) and (not name or name in names)
        if not separator or not is_known:
            raise SettingsError(
                f"{entry!r} does not name a tenant and a class of {_CLASSES}; expected TENANT=OBJECTIVE or "
                "TENANT/CLASS=OBJECTIVE",
                option=_TENANTS,
            )
        tenants[tenant, name] = _parse_objective(objective, entry, _TENANTS)
    return Objectives(Objective(DEFAULT_CLASS, default_seconds, settings.target), classes, tenants)


def _split(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _parse_class(entry: str) -> ClipClass:
    name, _, rest = entry.partition("=")
    shape, _, objective = rest.partition(":")
    size, _, seconds = shape.partition("/")
    try:
        pixels = Size.parse(size.strip()).pixels
    except InvalidField as exc:
        raise SettingsError(
            f"{entry!r} is not NAME=WIDTHxHEIGHT/SECONDS:OBJECTIVE, such as short=1280x720/5:30",
            option=_CLASSES,
        ) from exc
    if not TENANT_ID_PATTERN.fullmatch(name.strip()):
        raise SettingsError(f"{name!r} is not a class name: a-z, 0-9 and -", option=_CLASSES)
    clip_seconds = _to_seconds(seconds, entry, _CLASSES)
    return ClipClass(name.strip(), pixels, clip_seconds, _parse_objective(objective, entry, _CLASSES))


def _parse_objective(text: str, entry: str, option: str) -> PartialObjective:
    """SECONDS, SECONDS@TARGET or @TARGET."""
    seconds, separator, target = text.strip().partition("@")
    return PartialObjective(
        _to_seconds(seconds, entry, option) if seconds or not separator else None,
        _to_target(target, entry, option) if separator else None,
    )


def _to_seconds(text: str, entry: str, option: str) -> float:
    seconds = _to_number(text)
    if not 0 < seconds < float("inf"):
        raise SettingsError(f"{entry!r} has no positive number of seconds", option=option)
    return seconds


def _to_target(text: str, entry: str, option: str) -> float:
    target = _to_number(text)
    if not 0 < target < 1:
        raise SettingsError(f"{entry!r} has no target between 0 and 1, such as @0.99", option=option)
    return target


def _to_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
