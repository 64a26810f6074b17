"""Fleet, money and curves of a served language model."""

import math
from dataclasses import asdict

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.managed import TextApi
from filmgate.planner.answer import Curve, Json, Plots
from filmgate.planner.fleet.money import DAYS_A_MONTH
from filmgate.planner.fleet.sizing import NVME_BYTES_A_SECOND, cold_starts, isolation_levels
from filmgate.planner.llm.memory import cache_capacity
from filmgate.planner.llm.serving import ENGINE, LlmAsk, LlmCandidate
from filmgate.planner.llm.step_time import Serving, kv_bytes, prefill_step, steady_token_seconds, weight_bytes
from filmgate.planner.machines import price_by_region

DAY_SECONDS = 86_400


def llm_fleet(ask: LlmAsk, best: LlmCandidate, calibration: Calibration) -> Json:
    """Always warm, since tokens are awaited; what a cold start takes and what keeps tenants apart."""
    groups = best.machine.gpus // best.serving.gpus
    weights = weight_bytes(ask.model, ask.precision)
    walls = isolation_levels(best.machine.gpu, best.machine.instance, best.memory.peak_bytes)
    starts = cold_starts(weights, best.machine.instance, best.machine.gpu)
    slowest = max((start.total_seconds for start in starts), default=0.0)
    return {
        "pattern": "always warm",
        "reasons": [f"tokens are awaited, and a cold replica takes up to {slowest:.0f} s to start"],
        "machine": best.machine.name,
        "gpus_per_replica": best.serving.gpus,
        "replicas_per_instance": groups,
        "sequences_per_instance": groups * best.concurrency,
        **(_arrivals(ask, best) if best.fleet is not None else {}),
        "cold_start": [asdict(start) for start in starts],
        "isolation": [asdict(wall) | {"usd_per_tenant_month": None} for wall in walls],
        "cache_on_nvme": _cache_on_nvme(ask, best, calibration),
    }


def _arrivals(ask: LlmAsk, best: LlmCandidate) -> Json:
    """The fleet for the requests asked for: percentiles are those of the busiest hour."""
    traffic, fleet = ask.traffic, best.fleet
    assert traffic is not None
    assert fleet is not None
    return {
        "requests_per_day": traffic.per_day,
        "traffic": ask.shape.value,
        "peak_requests_per_second": traffic.peak_rate,
        "sequences_per_replica": best.concurrency,
        "replicas": fleet.replicas,
        "replicas_p99": fleet.replicas_p99,
        "instances": fleet.instances,
        "warm_replicas": fleet.warm_replicas,
        "utilisation": fleet.utilisation,
        "first_token_ms_p95": fleet.latency_p95 * 1e3,
        "first_token_ms_p99": fleet.latency_p99 * 1e3,
        "between_tokens_ms": best.between_tokens * 1e3,
    }


def _cache_on_nvme(ask: LlmAsk, best: LlmCandidate, calibration: Calibration) -> Json:
    """A paused sequence's cache read back from NVMe, against computing it again."""
    size = kv_bytes(ask.model, ask.context, ask.kv_precision)
    read = size / NVME_BYTES_A_SECOND
    again = prefill_step(best.serving, ask.context, 1, calibration.constants).seconds
    return {"bytes": size, "read_seconds": read, "recompute_seconds": again, "is_worth_it": read < again}


def llm_cost(ask: LlmAsk, best: LlmCandidate, catalog: Catalog, calibration: Calibration) -> Json:
    """Cost a million tokens, rivals, levers and regions."""
    hourly, price, daily = best.machine.usd_per_hour, best.machine.price, best.usd_per_day
    return {
        "currency": "USD",
        "machine": best.machine.name,
        "usd_per_hour": hourly,
        "usd_per_day": daily,
        "usd_per_month": daily * DAYS_A_MONTH if daily is not None else None,
        "idle_usd_per_day": best.bill.idle_usd_per_day if best.bill else None,
        "warm_usd_per_day": best.bill.warm_usd_per_day if best.bill else None,
        "usd_per_million_tokens": best.usd_per_million,
        "spot_range": [price.spot_min, price.spot_max] if price else None,
        "managed": [_rival(ask, api, hourly) for api in catalog.text_apis.values()],
        "levers": _levers(ask, best, calibration),
        "regions": price_by_region(best.machine, catalog),
    }


def blended_usd(ask: LlmAsk, api: TextApi) -> float:
    """USD for a million answer tokens with the prompts they came with."""
    return api.usd_per_million_output + ask.prompt / ask.answer * api.usd_per_million_input


def _rival(ask: LlmAsk, api: TextApi, hourly: float | None) -> Json:
    blended = blended_usd(ask, api)
    return {
        "id": api.id,
        "name": api.name,
        "usd_per_million_output_with_prompts": blended,
        "break_even_tokens_per_day": hourly * 24 / blended * 1e6 if hourly is not None else None,
        "note": "another model, shown for its price",
    }


def _levers(ask: LlmAsk, best: LlmCandidate, calibration: Calibration) -> list[Json]:
    found: list[Json] = []
    for name, precision, kv in (
        ("weights in fp8", "fp8", ask.kv_precision),
        ("cache in fp8", ask.precision, "fp8"),
    ):
        serving = Serving(ask.model, best.machine.gpu, best.serving.gpus, precision, kv, ENGINE)
        after = steady_token_seconds(serving, best.concurrency, ask.prompt, ask.answer, calibration.constants)
        found.append({"name": name, "saving": 1 - after / best.between_tokens})
    most = cache_capacity(best.serving, ask.context)
    full = steady_token_seconds(best.serving, most, ask.prompt, ask.answer, calibration.constants)
    saving = 1 - (full / most) / (best.between_tokens / best.concurrency)
    found.append({"name": f"a batch of {most:.0f} instead of {best.concurrency}", "saving": saving})
    return found


def llm_plots(ask: LlmAsk, best: LlmCandidate, catalog: Catalog, calibration: Calibration) -> Plots:
    """Cost a million tokens against millions a day, and time between tokens against the batch."""
    hourly = best.machine.usd_per_hour
    if hourly is None:
        return Plots()
    capacity = best.tokens_per_second * DAY_SECONDS / 1e6
    volumes = [capacity * 10 ** (i / 10 - 2) for i in range(31)]
    own = tuple((v, math.ceil(v / capacity) * 24 * hourly / v) for v in volumes)
    rivals = [
        Curve(api.name, ((volumes[0], usd), (volumes[-1], usd)))
        for api in catalog.text_apis.values()
        if (usd := blended_usd(ask, api))
    ]
    return Plots(
        cost=(Curve(f"own, {best.machine.name}", own), *rivals),
        break_even=tuple((curve.name, hourly * 24 / curve.points[0][1]) for curve in rivals[-1:]),
        latency=_latency(ask, best, calibration),
        slo_seconds=ask.tbt_ms / 1e3 if ask.tbt_ms else None,
        volume_name="million tokens a day",
        load_name="share of the sequences the cache can hold",
    )


def _latency(ask: LlmAsk, best: LlmCandidate, calibration: Calibration) -> tuple[Curve, ...]:
    most = cache_capacity(best.serving, ask.context)
    points = []
    for i in range(1, 41):
        batch = max(1.0, most * i / 40)
        each = steady_token_seconds(best.serving, batch, ask.prompt, ask.answer, calibration.constants)
        points.append((i / 40, each))
    return (Curve("time between tokens", tuple(points)),)
