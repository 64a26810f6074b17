"""Attainment, error budget and burn rates of an installation, for the command line and the API."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from filmgate.database import Database
from filmgate.jobs import TenantId
from filmgate.settings import Settings
from filmgate.slo.counts import SloCount, delete_old, read_since
from filmgate.slo.objectives import parse_objectives
from filmgate.slo.recording import WINDOWS
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry


@dataclass(frozen=True, slots=True)
class Attainment:
    """How the jobs of one class met their objective over the window of the error budget.

    `allowed` is how many jobs may be late, with the target of each. `burn_rates` says how many times faster
    than allowed the budget is spent, by window; None without jobs. At 1, the budget lasts exactly for its
    window.
    """

    tenant: str | None
    name: str
    objective_seconds: float
    jobs: int
    late: int
    allowed: float
    burn_rates: dict[str, float | None]

    @property
    def target(self) -> float:
        """The target of these jobs: their mean if tenants have different ones, or it was changed."""
        return round(1 - self.allowed / self.jobs, 9) if self.jobs else 0.0

    @property
    def attained(self) -> float | None:
        return 1 - self.late / self.jobs if self.jobs else None

    @property
    def budget_left(self) -> float | None:
        """The share of allowed late jobs that is left; below 0 when more were late than allowed."""
        return 1 - self.late / self.allowed if self.jobs else None


def attain(
    counts: Sequence[SloCount],
    now: float,
    objective_seconds: Callable[[TenantId | None, str], float],
    *,
    is_by_tenant: bool = False,
) -> list[Attainment]:
    """The attainment of each class, or of each class of each tenant."""
    groups: dict[tuple[TenantId | None, str], list[SloCount]] = {}
    for count in counts:
        groups.setdefault((count.tenant_id if is_by_tenant else None, count.name), []).append(count)
    return [
        Attainment(
            tenant=tenant_id,
            name=class_name,
            objective_seconds=objective_seconds(tenant_id, class_name),
            jobs=sum(count.jobs for count in found),
            late=sum(count.late for count in found),
            allowed=sum(count.allowed for count in found),
            burn_rates={
                name: _burn_rate(c for c in found if c.at > now - seconds)
                for name, seconds in WINDOWS.items()
            },
        )
        for (tenant_id, class_name), found in sorted(
            groups.items(), key=lambda group: (group[0][0] or "", group[0][1])
        )
    ]


def _burn_rate(counts: Iterable[SloCount]) -> float | None:
    found = list(counts)
    allowed = sum(count.allowed for count in found)
    return sum(count.late for count in found) / allowed if allowed else None


class SloReport:
    """Reads the attainment of an installation's objectives from its database."""

    def __init__(self, database: Database, settings: Settings) -> None:
        """Raises SettingsError for objectives that cannot be read."""
        self._database = database
        self._settings = settings.slo
        self._objectives = parse_objectives(settings.slo, settings.admission.slo_seconds)

    def read(self, *, is_by_tenant: bool = False) -> list[Attainment]:
        """How the objectives were met in the window of the error budget, by class, or by tenant and class."""
        counts, now = read_since(self._database, self._settings.window_seconds)
        known = {each.id: each for each in TenantRegistry(self._database).tenants()} if is_by_tenant else {}

        def objective_seconds(tenant_id: TenantId | None, name: str) -> float:
            tenant = known.get(tenant_id, Tenant(tenant_id)) if tenant_id is not None else None
            return self._objectives.resolve(name, tenant).seconds

        return attain(counts, now, objective_seconds, is_by_tenant=is_by_tenant)

    def delete_old(self) -> None:
        """Delete counts that no window reaches. Idempotent."""
        delete_old(self._database)

    def to_shape(self, found: Iterable[Attainment]) -> dict[str, object]:
        """The report as a JSON object."""
        return {
            "object": "slo",
            "target": self._settings.target,
            "window_seconds": self._settings.window_seconds,
            "data": [_to_row(one) for one in found],
        }


def _to_row(found: Attainment) -> dict[str, object]:
    return {
        "tenant": found.tenant,
        "class": found.name,
        "objective_seconds": found.objective_seconds,
        "target": found.target,
        "jobs": found.jobs,
        "late": found.late,
        "attained": found.attained,
        "budget_left": found.budget_left,
        "burn_rates": found.burn_rates,
    }
