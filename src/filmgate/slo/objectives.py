"""Which objective a clip has: by class of clip and by tenant. Pure; the settings are parsed once."""

from collections.abc import Mapping
from dataclasses import dataclass

from filmgate.errors import InvalidField, SettingsError
from filmgate.jobs import TENANT_ID_PATTERN, Size, TenantId, VideoSpec
from filmgate.settings import SloSettings

DEFAULT_CLASS = "default"
# Models round lengths and sizes to whole latent frames and blocks: 5 s may be 5.06 s.
_TOLERANCE = 1.05
_CLASSES, _TENANTS = "slo.classes", "slo.tenants"


@dataclass(frozen=True, slots=True)
class Objective:
    """A clip of this class is ready within `seconds` of its acceptance."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ClipClass:
    """Clips up to a size and a length."""

    name: str
    pixels: int
    clip_seconds: float
    objective_seconds: float

    def fits(self, spec: VideoSpec) -> bool:
        is_small = spec.clip_size.pixels <= self.pixels * _TOLERANCE
        return is_small and spec.seconds <= self.clip_seconds * _TOLERANCE


@dataclass(frozen=True, slots=True)
class Objectives:
    """The objectives of an installation. `tenants` holds seconds by tenant and class name, "" for all."""

    default_seconds: float
    classes: tuple[ClipClass, ...]
    tenants: Mapping[tuple[str, str], float]

    def of(self, tenant_id: TenantId, spec: VideoSpec) -> Objective:
        """The objective of a clip: the tenant's for this class, the tenant's, the class's, the default."""
        fitting = next((known for known in self.classes if known.fits(spec)), None)
        name = fitting.name if fitting is not None else DEFAULT_CLASS
        own = self.tenants.get((tenant_id, name), self.tenants.get((tenant_id, "")))
        if own is not None:
            return Objective(name, own)
        return Objective(name, fitting.objective_seconds if fitting is not None else self.default_seconds)

    @property
    def names(self) -> tuple[str, ...]:
        """All class names."""
        return (*(known.name for known in self.classes), DEFAULT_CLASS)


def parse_objectives(settings: SloSettings, default_seconds: float) -> Objectives:
    """Raises SettingsError that names the setting and the entry which cannot be read."""
    classes = tuple(_parse_class(entry) for entry in _split(settings.classes))
    names = {known.name for known in classes} | {DEFAULT_CLASS}
    if len(names) != len(classes) + 1:
        raise SettingsError("two classes have the same name, or one is named default", option=_CLASSES)
    tenants: dict[tuple[str, str], float] = {}
    for entry in _split(settings.tenants):
        whom, _, seconds = entry.partition("=")
        tenant, _, name = whom.strip().partition("/")
        if not TENANT_ID_PATTERN.fullmatch(tenant) or (name and name not in names):
            raise SettingsError(
                f"{entry!r} does not name a tenant and a class of {_CLASSES}; expected TENANT=SECONDS or "
                "TENANT/CLASS=SECONDS",
                option=_TENANTS,
            )
        tenants[tenant, name] = _to_seconds(seconds, entry, _TENANTS)
    return Objectives(default_seconds, classes, tenants)


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
    return ClipClass(name.strip(), pixels, clip_seconds, _to_seconds(objective, entry, _CLASSES))


def _to_seconds(text: str, entry: str, option: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise SettingsError(f"{entry!r} has no positive number of seconds", option=option)
    return seconds
