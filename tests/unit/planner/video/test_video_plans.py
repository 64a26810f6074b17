"""Complete video answers: verdict, ranking, rejections, impossible questions, and the time to plan."""

import time
from dataclasses import replace

import pytest

from filmgate.jobs import Size
from filmgate.planner.fleet.traffic import TrafficShape, traffic_of
from filmgate.planner.video.answer import plan_video
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.question import VideoQuestion

KEYS = ["verdict", "question", "is_possible", "kind", "memory", "time", "fleet", "cost", "options",
        "rejected", "serving_patterns", "plan_b", "assumptions", "sources"]  # fmt: skip


@pytest.fixture
def question(catalog):
    model = catalog.video_model("wan2.1-t2v-1.3b")
    clip = clip_for(model, size=Size(832, 480), seconds=5, steps=50)
    return VideoQuestion(model, clip, traffic=traffic_of(500), slo_seconds=150)


def test_the_json_object_has_the_documented_keys(question, catalog, calibration):
    answer = plan_video(question, catalog, calibration).as_json()
    assert list(answer) == KEYS
    assert {"lines", "peak_bytes", "peak_stage"} <= answer["memory"].keys()
    assert {"seconds_per_clip", "low", "high", "stages", "bound"} <= answer["time"].keys()
    assert all({"reason", "number"} <= row.keys() for row in answer["rejected"])
    assert answer["time"]["low"] < answer["time"]["seconds_per_clip"] < answer["time"]["high"]


def test_options_are_ranked_by_the_cost_of_a_clip_and_all_meet_the_slo(question, catalog, calibration):
    options = plan_video(question, catalog, calibration).options
    assert [o.rank for o in options] == list(range(1, len(options) + 1))
    costs = [o.usd_per_unit for o in options]
    assert costs == sorted(costs)
    assert all(o.latency_p95 <= 150 for o in options)


def test_every_instance_is_either_an_option_or_rejected(question, catalog, calibration):
    answer = plan_video(question, catalog, calibration)
    named = {o.name for o in answer.options} | {r.name for r in answer.rejected}
    assert named == set(catalog.instances)


def test_inferentia_is_rejected_with_the_reason(question, catalog, calibration):
    rejected = {r.name: r.reason for r in plan_video(question, catalog, calibration).rejected}
    assert "Neuron" in rejected["inf2.xlarge"]


def test_no_machine_alone_costs_less_than_the_plan_for_all_machines(catalog, calibration):
    """Formulas overstate the hours of a fleet of slow GPUs that scales to zero by more than half."""
    model = catalog.video_model("wan2.1-t2v-14b")
    rare = VideoQuestion(
        model,
        clip_for(model),
        region="sa-east-1",
        traffic=traffic_of(11, TrafficShape.BUSINESS),
        slo_seconds=6296,
        spare_machines=0,
    )
    alone = replace(rare, instances=("g6e.2xlarge",))
    every, one = (plan_video(asked, catalog, calibration).cost for asked in (rare, alone))
    assert every.usd_per_day <= one.usd_per_day


def test_twice_the_volume_never_costs_less_and_ten_times_costs_less_per_clip(question, catalog, calibration):
    one, two, ten = plan_video(question, catalog, calibration).cost.by_volume
    assert one.usd_per_day <= two.usd_per_day <= ten.usd_per_day
    assert ten.usd_per_clip < one.usd_per_clip


def test_the_managed_api_is_recommended_below_its_break_even(question, catalog, calibration):
    quiet = plan_video(replace(question, traffic=traffic_of(5), slo_seconds=90), catalog, calibration)
    assert quiet.verdict.startswith("Use Luma")
    assert quiet.fleet.pattern == "managed API"
    assert "measure it before you promise 90 s" in quiet.verdict


def test_the_latency_of_a_fleet_that_scales_to_zero_includes_cold_starts(question, catalog, calibration):
    runtime = replace(question.runtime, can_scale_to_zero=False)
    rare = replace(question, traffic=traffic_of(5), slo_seconds=3600)
    scaled = plan_video(rare, catalog, calibration)
    assert scaled.fleet.pattern == "queue with scale to zero"
    assert scaled.fleet.size.latency_p95 > scaled.time.seconds_per_clip + 60
    assert not [part for part in scaled.cost.purchase if part.how == "committed"]
    warm = plan_video(replace(rare, runtime=runtime), catalog, calibration)
    assert warm.fleet.pattern == "managed API"
    assert scaled.cost.usd_per_day < warm.cost.usd_per_day


def test_levers_state_their_saving(question, catalog, calibration):
    eager = replace(question, mode="eager")
    levers = {lever.name: lever.saving for lever in plan_video(eager, catalog, calibration).cost.levers}
    assert 0.02 < levers["compiled operators"] < 0.5
    assert 0.02 < levers["denoiser in fp8"] < 0.5
    assert levers["batching clips"] == 0.0


def test_flash_attention_is_a_lever_where_fused_kernels_were_measured(question, catalog, calibration):
    hopper = replace(question, gpu=catalog.gpu("H200"))
    plain = plan_video(hopper, catalog, calibration)
    levers = {lever.name: lever for lever in plain.cost.levers}
    assert 0.05 < levers["flash-attn-4"].saving < 0.2
    assert "compiled operators" not in levers  # pipeline.compile = on would turn fused kernels off
    with_flash = plan_video(replace(hopper, has_flash=True), catalog, calibration)
    assert with_flash.time.seconds_per_clip == pytest.approx(levers["flash-attn-4"].seconds)
    assert "flash-attn-4" not in [lever.name for lever in with_flash.cost.levers]
    ada = plan_video(replace(question, gpu=catalog.gpu("L40S"), slo_seconds=None), catalog, calibration)
    assert "flash-attn-4" not in [lever.name for lever in ada.cost.levers]


def test_adapters_share_one_fleet(question, catalog, calibration):
    one, many = (plan_video(replace(question, adapters=n), catalog, calibration) for n in (1, 12))
    assert many.fleet.size == one.fleet.size
    assert many.cost.usd_per_day == one.cost.usd_per_day
    assert "12 LoRA adapters" in many.question
    assert "the 12 adapters share one fleet" in many.fleet.reasons[-1]


def test_without_nvenc_the_clip_is_encoded_on_the_cpu(question, catalog, calibration):
    bare = plan_video(replace(question, gpu=catalog.gpu("H100")), catalog, calibration)
    assert bare.fleet.software.encode_on.startswith("CPU")


@pytest.mark.parametrize(
    ("slo", "message"),
    [(1.0, "No machine renders this clip in 1 s"), (0.001, "use fewer frames or a smaller size")],
)
def test_an_impossible_slo_is_answered_with_what_would_have_to_change(
    question, catalog, calibration, slo, message
):
    answer = plan_video(replace(question, slo_seconds=slo), catalog, calibration)
    assert not answer.is_possible
    assert message in answer.verdict
    assert "allow" in answer.verdict
    assert list(answer.as_json()) == KEYS


def test_the_recommended_steps_meet_the_slo_and_one_more_does_not(catalog, calibration):
    model = catalog.video_model("wan2.1-t2v-14b")
    question = VideoQuestion(model, clip_for(model, seconds=5), traffic=traffic_of(500), slo_seconds=90)
    verdict = plan_video(question, catalog, calibration).verdict
    steps = int(verdict.split("at most ")[1].split(" steps")[0])
    fewer = replace(question, clip=replace(question.clip, steps=steps))
    more = replace(question, clip=replace(question.clip, steps=steps + 1))
    assert plan_video(fewer, catalog, calibration).is_possible
    assert not plan_video(more, catalog, calibration).is_possible


def test_a_clip_that_does_not_fit_is_answered_with_what_would_fit(catalog, calibration):
    model = catalog.video_model("ltx-video-2b-0.9.0")
    clip = clip_for(model, size=Size(3840, 2176), frames=601)
    answer = plan_video(VideoQuestion(model, clip, gpu=catalog.gpu("L4")), catalog, calibration)
    assert not answer.is_possible
    assert "GiB" in answer.verdict
    assert "frames would fit" in answer.verdict or "smaller" in answer.verdict


def test_a_volume_above_the_largest_fleet_is_answered_with_several_fleets(question, catalog, calibration):
    answer = plan_video(replace(question, traffic=traffic_of(1e9)), catalog, calibration)
    assert answer.verdict.startswith("Too much for one fleet")


def test_a_region_outside_the_residency_is_rejected_with_the_allowed_ones(question, catalog, calibration):
    answer = plan_video(replace(question, residency="EU"), catalog, calibration)
    assert "eu-north-1" in answer.verdict
    assert not answer.options


def test_a_machine_without_a_price_in_the_region_is_rejected_by_name(question, catalog, calibration):
    ireland = plan_video(replace(question, region="eu-west-1", slo_seconds=None), catalog, calibration)
    assert not any(o.name.startswith(("g7e", "g6e", "p5.")) for o in ireland.options)
    assert any(r.name == "g7e.2xlarge" and "eu-west-1" in r.reason for r in ireland.rejected)


@pytest.mark.parametrize("shape", list(TrafficShape))
@pytest.mark.parametrize("name", ["wan2.1-t2v-14b", "svd-xt"])
def test_a_plan_costs_at_most_thirty_times_a_fixed_amount_of_python(catalog, calibration, name, shape):
    """The baseline takes about 10 ms; benchmarks/bench_planner.py measures both."""
    baseline = min(timed(lambda: sum(i * i for i in range(200_000))) for _ in range(3))
    model = catalog.video_model(name)
    for slo in (None, 90, 3600):
        question = VideoQuestion(model, clip_for(model), traffic=traffic_of(5000, shape), slo_seconds=slo)
        best = min(
            timed(lambda question=question: plan_video(question, catalog, calibration)) for _ in range(3)
        )
        assert best < 30 * baseline


def timed(call):
    started = time.thread_time()
    call()
    return time.thread_time() - started


def test_every_model_gets_an_answer_on_the_largest_gpu(catalog, calibration):
    for model in catalog.video_models.values():
        answer = plan_video(
            VideoQuestion(model, clip_for(model), gpu=catalog.gpu("B200")), catalog, calibration
        )
        assert answer.options, model.id
