"""Attainment of the objectives of an installation, for the command line and the API."""

from collections.abc import Iterable

from filmgate.database import Database
from filmgate.jobs import TenantId
from filmgate.settings import Settings
from filmgate.slo.attainment import Attainment, attain
from filmgate.slo.counts import delete_old, read_since
from filmgate.slo.objectives import parse_objectives
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry


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
