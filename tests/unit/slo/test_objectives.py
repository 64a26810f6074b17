"""Objectives by class of clip and tenant; attainment and burn rates."""

import pytest

from filmgate.errors import SettingsError
from filmgate.jobs import TenantId
from filmgate.settings import SloSettings
from filmgate.slo.counts import SloCount
from filmgate.slo.objectives import parse_objectives
from filmgate.slo.report import attain
from filmgate.tenants.base import PartialObjective, Tenant
from tests.tickets import make_spec

ACME, GLOBEX = Tenant(TenantId("acme")), Tenant(TenantId("globex"))


def test_the_default_is_90_seconds_for_30_seconds_at_720p():
    objective = parse_objectives(SloSettings(), 90.0).of(
        ACME, make_spec(width=1280, height=720, seconds=30.0)
    )
    assert (objective.name, objective.seconds, objective.target) == ("default", 90.0, 0.95)


def test_a_clip_belongs_to_the_first_class_it_fits_into():
    settings = SloSettings(classes="short=1280x720/5:30, long=1920x1080/60:240")
    objectives = parse_objectives(settings, 90.0)
    clips = [(5.0625, 720), (6.0, 720), (60.0, 1080), (64.0, 1080)]
    found = [objectives.of(ACME, make_spec(width=1280, height=h, seconds=s)) for s, h in clips]
    assert [one.name for one in found] == ["short", "long", "long", "default"]
    assert [one.seconds for one in found] == [30, 240, 240, 90]


def test_a_tenants_objective_comes_first():
    settings = SloSettings(classes="short=1280x720/5:30", tenants="acme=60,acme/short=20")
    objectives = parse_objectives(settings, 90.0)
    short, long = make_spec(seconds=2.0), make_spec(seconds=20.0)
    assert [objectives.of(ACME, spec).seconds for spec in (short, long)] == [20, 60]
    assert [objectives.of(GLOBEX, spec).seconds for spec in (short, long)] == [30, 90]


CLASSES = "short=1280x720/5:30@0.99, long=1920x1080/60:240"


@pytest.mark.parametrize(
    ("tenants", "own", "expected"),
    [
        ("", PartialObjective(), [(30, 0.99), (240, 0.95), (90, 0.95)]),
        ("acme=@0.999", PartialObjective(), [(30, 0.999), (240, 0.999), (90, 0.999)]),
        ("acme=60,acme/short=20@0.9", PartialObjective(), [(20, 0.9), (60, 0.95), (60, 0.95)]),
        ("acme/default=45", PartialObjective(), [(30, 0.99), (240, 0.95), (45, 0.95)]),
        ("acme=60@0.9", PartialObjective(target=0.5), [(60, 0.5), (60, 0.5), (60, 0.5)]),
        ("acme/short=20", PartialObjective(7), [(7, 0.99), (7, 0.95), (7, 0.95)]),
    ],
)
def test_seconds_and_target_are_the_tenants_then_the_classes_then_the_default(tenants, own, expected):
    """A tenant's registered objective, its settings, the class of clip, the default."""
    objectives = parse_objectives(SloSettings(classes=CLASSES, tenants=tenants), 90.0)
    acme = Tenant(ACME.id, objective=own)
    found = [objectives.resolve(name, acme) for name in ("short", "long", "default")]
    assert [(one.seconds, one.target) for one in found] == expected
    general = [objectives.resolve(name, GLOBEX) for name in ("short", "long", "default")]
    assert general == [objectives.resolve(name) for name in ("short", "long", "default")]
    assert [(one.seconds, one.target) for one in general] == [(30, 0.99), (240, 0.95), (90, 0.95)]


@pytest.mark.parametrize(
    ("classes", "tenants", "option"),
    [
        ("short=720p/5:30", "", "slo.classes"),
        ("short=1280x720/5", "", "slo.classes"),
        ("default=1280x720/5:30", "", "slo.classes"),
        ("a=64x64/5:30,a=64x64/6:30", "", "slo.classes"),
        ("", "acme", "slo.tenants"),
        ("", "acme/short=20", "slo.tenants"),
        ("", "acme=-1", "slo.tenants"),
        ("short=1280x720/5:30@1", "", "slo.classes"),
        ("short=1280x720/5:30@", "", "slo.classes"),
        ("", "acme=@99", "slo.tenants"),
    ],
)
def test_a_setting_that_cannot_be_read_is_named(classes, tenants, option):
    with pytest.raises(SettingsError) as caught:
        parse_objectives(SloSettings(classes=classes, tenants=tenants), 90.0)
    assert caught.value.option == option


def always_90(_tenant_id, _name):
    return 90.0


def test_attainment_budget_and_burn_rates():
    now = 1_000_000.0
    counts = [
        SloCount(int(now - 200), ACME.id, "default", 10, 5, 0.5),
        SloCount(int(now - 3000), GLOBEX.id, "default", 90, 0, 4.5),
        SloCount(int(now - 80_000), ACME.id, "default", 100, 0, 5.0),
    ]
    (found,) = attain(counts, now, always_90)
    assert (found.jobs, found.late, found.attained, found.target) == (200, 5, 0.975, 0.95)
    assert found.objective_seconds == 90.0
    assert found.budget_left == pytest.approx(0.5)
    assert found.burn_rates["5m"] == pytest.approx(10)
    assert found.burn_rates["1h"] == pytest.approx(1)
    assert found.burn_rates["1d"] == pytest.approx(0.5)
    by_tenant = attain(counts, now, always_90, is_by_tenant=True)
    assert [(one.tenant, one.jobs) for one in by_tenant] == [("acme", 110), ("globex", 90)]
    assert by_tenant[1].burn_rates["5m"] is None


def test_each_job_adds_to_the_budget_what_its_own_target_allows():
    """Two tenants with different targets in one class: 1 late job is 10 times too many for one of them."""
    counts = [
        SloCount(900, ACME.id, "default", 100, 1, 0.1),
        SloCount(900, GLOBEX.id, "default", 100, 1, 10.0),
    ]
    (together,) = attain(counts, 1000.0, always_90)
    assert (together.target, together.budget_left) == (0.9495, pytest.approx(1 - 2 / 10.1))
    strict, loose = attain(counts, 1000.0, always_90, is_by_tenant=True)
    assert (strict.target, strict.budget_left, strict.burn_rates["5m"]) == (0.999, -9, 10)
    assert (loose.target, loose.budget_left, loose.burn_rates["5m"]) == (0.9, 0.9, 0.1)
