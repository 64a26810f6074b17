"""The chart's defaults for scaling are what the replay shows to be best."""

from dataclasses import replace
from itertools import product

import yaml

from deploy.tests.charts import CHART, ROOT
from filmgate.planner.fleet.keda import KedaSettings, OfficeHours
from filmgate.planner.fleet.replay import Machines, replay
from filmgate.planner.fleet.scenarios import SCENARIOS

SLO_SECONDS = 300
MAX_LATE_SHARE = 0.001


def chart_settings():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    keda, worker = values["keda"], values["workerDefaults"]
    return KedaSettings(
        min_replicas=worker["minReplicas"],
        max_replicas=worker["maxReplicas"],
        backlog_seconds_per_worker=worker["scaling"]["backlogSecondsPerWorker"],
        polling_seconds=keda["pollingSeconds"],
        scale_out_seconds=keda["scaleOutSeconds"],
        scale_in_seconds=keda["scaleInSeconds"],
    )


def office_hours():
    """The settings of deploy/values/office-hours.yaml."""
    values = yaml.safe_load((ROOT / "deploy/values/office-hours.yaml").read_text())
    (hours,) = values["workers"]["wan"]["scaling"]["schedule"]
    start, end = (int(hours[name].split()[1]) + int(hours[name].split()[0]) / 60 for name in ("start", "end"))
    assert hours["start"].endswith("1-5")
    return replace(chart_settings(), min_replicas=0, schedule=(OfficeHours(start, end, hours["replicas"]),))


def test_the_replay_and_the_chart_have_the_same_defaults():
    assert chart_settings() == KedaSettings()


def test_of_all_windows_with_hardly_a_late_job_the_charts_are_the_cheapest_for_an_office_week():
    jobs = SCENARIOS["week"].jobs(60.0)
    given, found = office_hours(), {}
    for scale_in, scale_out in product((60.0, 300.0, 600.0), (0.0, 60.0, 120.0)):
        settings = replace(given, scale_in_seconds=scale_in, scale_out_seconds=scale_out)
        result = replay(jobs, settings, Machines())
        if result.late(SLO_SECONDS) <= MAX_LATE_SHARE * len(jobs):
            found[scale_in, scale_out] = result.usd
    assert min(found, key=found.get) == (given.scale_in_seconds, given.scale_out_seconds) == (300, 60)


def test_office_hours_cost_two_thirds_of_a_warm_minimum_and_a_minimum_less_than_a_fixed_fleet():
    jobs = SCENARIOS["week"].jobs(60.0)
    warm, fixed = chart_settings(), replace(chart_settings(), min_replicas=8)
    hours, minimum, maximum = (
        replay(jobs, settings, Machines()).usd for settings in (office_hours(), warm, fixed)
    )
    assert hours < 0.67 * minimum
    assert minimum < 0.4 * maximum


def test_with_a_scale_in_of_sixty_seconds_a_monday_has_more_late_jobs_and_costs_no_less():
    jobs = SCENARIOS["monday"].jobs(60.0)
    given = chart_settings()
    kept, hasty = (
        replay(jobs, replace(given, scale_in_seconds=seconds), Machines()) for seconds in (300.0, 60.0)
    )
    assert kept.late(180) < hasty.late(180)
    assert kept.usd <= hasty.usd
