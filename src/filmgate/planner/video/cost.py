"""The money of a video plan: bill, purchase, managed rivals, levers, growth, regions, and the curves."""

from dataclasses import asdict, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.answer import Curve, Json, Plots
from filmgate.planner.fleet.money import DAYS_A_MONTH, purchase_mix
from filmgate.planner.fleet.queueing import wait_percentile
from filmgate.planner.machines import price_by_region
from filmgate.planner.video.candidates import Candidate, VideoAsk, daily_cost, machine_time
from filmgate.planner.video.managed import Offer

GROWTH = (1, 2, 10)


def cost_block(
    ask: VideoAsk, best: Candidate, catalog: Catalog, calibration: Calibration, offers: list[Offer]
) -> Json:
    """Everything the one who signs the bill asks."""
    per_clip = best.usd_per_clip(ask)
    block: Json = {
        "currency": "USD",
        "machine": best.machine.name,
        "usd_per_hour": best.machine.usd_per_hour,
        "usd_per_clip": per_clip,
        "usd_per_busy_clip": best.usd_per_busy_clip,
        "usd_per_second_of_video": per_clip / ask.clip.seconds if per_clip is not None else None,
        "managed": [asdict(offer) for offer in offers],
        "levers": _levers(ask, best, calibration),
        "regions": price_by_region(best.machine, catalog),
    }
    if best.bill:
        block |= {
            "usd_per_day": best.bill.usd_per_day,
            "usd_per_month": best.bill.usd_per_month,
            "idle_usd_per_day": best.bill.idle_usd_per_day,
            "warm_usd_per_day": best.bill.warm_usd_per_day,
        }
        block["growth"] = _growth(ask, best)
    if best.fleet and best.machine.price:
        mix = purchase_mix(
            best.fleet,
            best.machine.price,
            commit_discount=ask.commit_discount,
            interruptible_share=ask.interruptible_share,
        )
        block["purchase"] = [asdict(part) for part in mix]
        block["spot_range"] = [best.machine.price.spot_min, best.machine.price.spot_max]
    return block


def _levers(ask: VideoAsk, best: Candidate, calibration: Calibration) -> list[Json]:
    """What each change would save on this machine; batching saves nothing a roofline can see."""
    before = best.seconds
    changes: list[tuple[str, VideoAsk, str]] = []
    if ask.precision == "bf16" and best.machine.gpu.fp8_tflops:
        changes.append(
            (
                "denoiser in fp8",
                replace(ask, precision="fp8"),
                "matrix products at the fp8 rate; attention stays bf16; check quality",
            )
        )
    if ask.mode == "eager":
        changes.append(
            ("compiled operators", replace(ask, mode="compiled"), "fused elementwise work; lossless")
        )
    found: list[Json] = []
    for name, changed, note in changes:
        placement = replace(best.trial.placement, weights=changed.precision)
        after = machine_time(changed, best.machine, best.split, placement, calibration.constants).seconds
        found.append({"name": name, "seconds": after, "saving": 1 - after / before, "note": note})
    memory_share = sum(t.memory for t in best.trial.time.stages if t.stage == "denoise") / before
    found.append(
        {
            "name": "batching clips",
            "seconds": before,
            "saving": 0.0,
            "note": f"one clip already fills the GPU: only {memory_share:.0%} of its time is memory traffic, "
            "and that grows with the batch",
        }
    )
    return found


def _growth(ask: VideoAsk, best: Candidate) -> list[Json]:
    volume = ask.clips_per_day or 0.0
    rows: list[Json] = []
    for factor in GROWTH:
        cost = daily_cost(ask, best, volume * factor)
        per_clip = cost / (volume * factor) if cost and volume else None
        rows.append(
            {
                "factor": factor,
                "clips_per_day": volume * factor,
                "usd_per_day": cost,
                "usd_per_month": cost * DAYS_A_MONTH if cost is not None else None,
                "usd_per_clip": per_clip,
            }
        )
    return rows


def video_plots(ask: VideoAsk, best: Candidate, offers: list[Offer]) -> Plots:
    """Cost against volume, and latency against load for the fleet chosen."""
    if best.fleet is None or ask.clips_per_day is None or best.machine.usd_per_hour is None:
        return Plots()
    volume = max(ask.clips_per_day, 1.0)
    volumes = [volume * 10 ** (i / 16 - 1.25) for i in range(41)]
    own = tuple((v, cost / v) for v in volumes if (cost := daily_cost(ask, best, v)) is not None)
    lines = [Curve(f"own, {best.machine.name}", own)]
    crossings = []
    for offer in offers:
        if not offer.is_available:
            continue
        usd, crossing = offer.usd_per_clip, offer.break_even_clips_per_day
        lines.append(Curve(offer.name, ((volumes[0], usd), (volumes[-1], usd))))
        if crossing is not None:
            crossings.append((offer.name, crossing))
    return Plots(
        tuple(lines), tuple(crossings), _latency_curves(ask, best), ask.slo_seconds, ask.clips_per_day
    )


def _latency_curves(ask: VideoAsk, best: Candidate) -> tuple[Curve, ...]:
    traffic, fleet = ask.traffic(), best.fleet
    if traffic is None or fleet is None:
        return ()
    curves = []
    for name, share in (("p95", 0.95), ("p99", 0.99)):
        points = []
        for i in range(1, 39):
            load = i / 40
            rate = load * fleet.replicas / best.seconds
            wait = wait_percentile(rate, best.seconds, fleet.replicas, share, traffic.bunch)
            points.append((load, best.seconds + wait))
        curves.append(Curve(name, tuple(points)))
    return tuple(curves)
