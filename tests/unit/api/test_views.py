"""The cost in the video object."""

from dataclasses import replace

from filmgate.api.views import cost_of
from filmgate.jobs import Route, RouteReason, Routing, StageSeconds
from filmgate.scheduling.rows import first_job
from tests.tickets import make_ticket

JOB = first_job(make_ticket(gpu_seconds=36.0), now=1.0)
MANAGED = replace(JOB, route=Route.MANAGED, routing=Routing(RouteReason.DEADLINE, usd=3.75))


def test_a_job_on_our_gpus_costs_its_gpu_seconds():
    cost = cost_of(JOB, usd_per_gpu_hour=10.0)
    assert (cost.gpu_seconds, cost.usd, cost.is_measured) == (36.0, 0.1, False)
    done = replace(JOB, measured=StageSeconds(denoise=72.0))
    assert (cost_of(done, 10.0).usd, cost_of(done, 10.0).is_measured) == (0.2, True)
    assert cost_of(JOB, 0.0).usd is None


def test_a_job_at_a_provider_costs_the_price_of_the_provider():
    assert (cost_of(MANAGED, 10.0).gpu_seconds, cost_of(MANAGED, 10.0).usd) == (0.0, 3.75)
    assert cost_of(replace(MANAGED, measured=StageSeconds(upload=1.0)), 0.0).usd == 3.75
