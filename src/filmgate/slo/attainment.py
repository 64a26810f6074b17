"""Attainment, error budget and burn rates from counted jobs. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from filmgate.jobs import TenantId
from filmgate.slo.counts import SloCount

# The windows of the burn-rate alerts, by name.
WINDOWS = {
    "5m": 300.0,
    "30m": 1800.0,
    "1h": 3600.0,
    "2h": 7200.0,
    "6h": 21600.0,
    "1d": 86400.0,
    "3d": 259200.0,
}


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
