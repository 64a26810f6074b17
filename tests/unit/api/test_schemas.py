"""The cost in the video object."""

from dataclasses import replace

from filmgate.api.schemas import Cost
from filmgate.jobs import Route, RouteReason, Routing, StageSeconds
from tests.tickets import make_ticket, queued_job

JOB = queued_job(make_ticket(gpu_seconds=36.0), now=1.0)
MANAGED = replace(JOB, route=Route.MANAGED, routing=Routing(RouteReason.DEADLINE, usd=3.75))


def test_a_job_on_our_gpus_costs_its_gpu_seconds():
    cost = Cost.of(JOB, usd_per_gpu_hour=10.0)
    assert (cost.gpu_seconds, cost.usd, cost.is_measured) == (36.0, 0.1, False)
    done = replace(JOB, measured=StageSeconds(denoise=72.0))
    assert (Cost.of(done, 10.0).usd, Cost.of(done, 10.0).is_measured) == (0.2, True)
    assert Cost.of(JOB, 0.0).usd is None


def test_a_job_at_a_provider_costs_the_price_of_the_provider():
    assert (Cost.of(MANAGED, 10.0).gpu_seconds, Cost.of(MANAGED, 10.0).usd) == (0.0, 3.75)
    assert Cost.of(replace(MANAGED, measured=StageSeconds(upload=1.0)), 0.0).usd == 3.75
