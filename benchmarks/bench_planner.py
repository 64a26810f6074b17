"""Planning time of each question, and its ratio to a fixed amount of plain Python.

No GPU is needed. The budget is 300 ms per plan after start-up.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

from benchmarks.report import JsonFlag, print_report, run
from filmgate.catalog.loader import load_calibration, load_catalog
from filmgate.jobs import Size
from filmgate.planner.fit import plan_fit
from filmgate.planner.fleet.traffic import TrafficShape, traffic_of
from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.video.answer import plan_video
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.question import VideoQuestion

REPEATS = 7
BUDGET_MS = 300


def milliseconds(call: Callable[[], object]) -> float:
    samples = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        call()
        samples.append((time.perf_counter() - started) * 1e3)
    return statistics.median(samples)


def questions() -> dict[str, Callable[[], object]]:
    catalog, calibration = load_catalog(), load_calibration()
    model = catalog.video_model("wan2.1-t2v-14b")
    clip = clip_for(model, size=Size(1280, 720), seconds=5, steps=50)
    possible = VideoQuestion(model, clip, traffic=traffic_of(500, TrafficShape.BUSINESS), slo_seconds=600)
    impossible = VideoQuestion(model, clip, traffic=traffic_of(500), slo_seconds=90)
    llm = LlmQuestion(catalog.llm("llama-3.3-70b"), "fp8", concurrency=16)
    return {
        "video": partial(plan_video, possible, catalog, calibration),
        "video_impossible": partial(plan_video, impossible, catalog, calibration),
        "llm": partial(plan_llm, llm, catalog, calibration),
        "fit": partial(plan_fit, catalog, calibration, "us-east-1", instance="g7e.48xlarge"),
        "load_catalog": load_catalog.__wrapped__,
    }


def baseline() -> None:
    """A fixed amount of plain Python, for comparisons between machines."""
    sum(i * i for i in range(200_000))


def main(is_json: JsonFlag = False) -> None:
    """Time each question."""
    reference = milliseconds(baseline)
    times = {name: milliseconds(call) for name, call in questions().items()}
    results = {
        "median_ms": {name: round(value, 2) for name, value in times.items()},
        "is_within_budget": max(times.values()) < BUDGET_MS,
    }
    ratios = {f"{name}_to_200k_squares": round(value / reference, 2) for name, value in times.items()}
    print_report("planner", {"budget_ms": BUDGET_MS}, results, ratios, is_json=is_json)


if __name__ == "__main__":
    run(main)
