"""Common claims about these machines, each checked with the planner or its catalog."""

import pytest

from filmgate.catalog.gpus import GIB
from filmgate.planner.fleet.isolation import isolation_levels
from filmgate.planner.fleet.money import break_even
from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.llm.step_time import kv_bytes, weight_bytes


def price(catalog, name, region="us-east-1"):
    return catalog.price(name, region).on_demand


def test_g7e_is_the_rtx_pro_6000_with_twice_the_memory_of_an_l40s(catalog):
    assert catalog.instance("g7e.2xlarge").gpu == "RTX-PRO-6000-BSE"
    pro, l40s = catalog.gpu("RTX-PRO-6000-BSE"), catalog.gpu(catalog.instance("g6e.xlarge").gpu)
    assert l40s.name == "L40S"
    assert pro.memory_mib > 2 * l40s.memory_mib
    assert (pro.bandwidth_gb_s, l40s.bandwidth_gb_s) == (1597, 864)


def test_g7_is_the_rtx_pro_4500_with_32_gb_and_up_to_eight(catalog):
    sizes = [i for i in catalog.instances.values() if i.family == "g7"]
    assert {i.gpu for i in sizes} == {"RTX-PRO-4500-BSE"}
    assert max(i.gpus for i in sizes) == 8
    assert catalog.gpu("RTX-PRO-4500-BSE").memory_mib == 32768


def test_the_smallest_g7e_is_the_2xlarge(catalog):
    assert "g7e.xlarge" not in catalog.instances
    assert catalog.instance("g7e.48xlarge").gpus == 8


def test_the_karpenter_name_of_g7e_is_not_l40s(catalog):
    assert catalog.gpu("RTX-PRO-6000-BSE").karpenter_name == "rtx-pro-server-6000"
    assert catalog.gpu("RTX-PRO-4500-BSE").karpenter_name == "rtx-pro-4500"


def test_hardware_isolation_on_g7e_does_not_need_a_dedicated_gpu(catalog):
    levels = {w.level: w for w in isolation_levels(catalog.gpu("RTX-PRO-6000-BSE"), None, 20 * GIB)}
    assert levels["MIG slice"].is_possible
    assert catalog.gpu("L40S").mig_slices == 0


def test_70b_fp8_weighs_70_gb_and_fits_one_96_gb_card(catalog, calibration):
    model = catalog.llm("llama-3.3-70b")
    assert weight_bytes(model, "fp8") / 1e9 == pytest.approx(70.6, abs=0.1)
    answer = plan_llm(LlmQuestion(model, "fp8", gpu=catalog.gpu("RTX-PRO-6000-BSE")), catalog, calibration)
    assert answer.is_possible


def test_the_8k_cache_of_70b_is_two_and_a_half_gib_not_twelve(catalog):
    assert kv_bytes(catalog.llm("llama-3.3-70b"), 8192) / GIB == pytest.approx(2.5)


def test_g7e_12xlarge_comes_before_g6e_24xlarge_at_55_per_cent_of_the_price(catalog, calibration):
    question = LlmQuestion(
        catalog.llm("llama-3.3-70b"), "fp8", concurrency=16, instances=("g6e.24xlarge", "g7e.12xlarge")
    )
    options = plan_llm(question, catalog, calibration).options
    assert [o.name for o in options] == ["g7e.12xlarge", "g6e.24xlarge"]
    assert price(catalog, "g7e.12xlarge") / price(catalog, "g6e.24xlarge") == pytest.approx(0.55, abs=0.005)
    assert options[0].usd_per_unit < options[1].usd_per_unit


def test_g7e_12xlarge_has_more_memory_and_nearly_the_bandwidth_of_g6e_24xlarge(catalog):
    new, old = catalog.instance("g7e.12xlarge"), catalog.instance("g6e.24xlarge")
    assert new.gpus * new.gpu_mib / 1024 == pytest.approx(192)
    assert old.gpus * old.gpu_mib / 1024 == pytest.approx(178.8, abs=0.1)
    assert new.gpus * catalog.gpu(new.gpu).bandwidth_gb_s == 3194
    assert old.gpus * catalog.gpu(old.gpu).bandwidth_gb_s == 3456


def test_no_g_instance_has_nvlink(catalog):
    for instance in catalog.instances.values():
        if instance.name.startswith("g") and instance.gpus:
            assert not catalog.gpu(instance.gpu).has_nvlink


def test_70b_bf16_fits_g7e_12xlarge_and_does_not_need_g7_48xlarge(catalog, calibration):
    names = ("g7e.12xlarge", "g7.48xlarge")
    answer = plan_llm(
        LlmQuestion(catalog.llm("llama-3.3-70b"), "bf16", instances=names), catalog, calibration
    )
    assert answer.options[0].name == "g7e.12xlarge"
    assert price(catalog, "g7e.12xlarge") < 0.3 * price(catalog, "g7.48xlarge")


def test_a_32b_model_in_fp8_fits_one_l40s_or_one_g7e_card(catalog, calibration):
    for name in ("g6e.xlarge", "g7e.2xlarge"):
        answer = plan_llm(
            LlmQuestion(catalog.llm("qwen3-32b"), "fp8", instances=(name,)), catalog, calibration
        )
        assert answer.is_possible
        assert answer.options[0].gpus_per_replica == 1


def test_fp8_is_older_than_blackwell_and_fp4_is_not(catalog):
    assert catalog.gpu("L4").fp8_tflops
    assert catalog.gpu("L40S").fp4_tflops is None
    assert catalog.gpu("B200").fp4_tflops


def test_g7e_costs_more_per_hour_than_g5_and_g6_by_the_stated_factors(catalog):
    g7e = price(catalog, "g7e.2xlarge")
    for name, factor in (("g5.2xlarge", 2.77), ("g6.2xlarge", 3.44), ("g6e.2xlarge", 1.50)):
        assert g7e / price(catalog, name) == pytest.approx(factor, abs=0.01)


def test_g7e_is_in_ten_regions_and_g7_in_four(catalog):
    def regions(family):
        return {p.region for p in catalog.prices.values() if p.instance.startswith(f"{family}.")}

    assert len(regions("g7e")) == 10
    assert len(regions("g7")) == 4
    assert not regions("g7e") & {"eu-west-1", "sa-east-1"}


def test_g7_spot_is_up_to_seventy_per_cent_off(catalog):
    spot = catalog.price("g7.2xlarge", "us-east-1")
    assert 0.60 < 1 - spot.spot_max / spot.on_demand < 1 - spot.spot_min / spot.on_demand < 0.72


def test_reel_is_retired_and_ray2_costs_nineteen_times_as_much(catalog):
    reel, ray = catalog.video_apis["amazon.nova-reel-v1:1"], catalog.video_apis["luma.ray-v2:0-720p"]
    assert not reel.is_available
    assert reel.end_of_life == "2026-09-30"
    assert ray.is_available
    assert ray.regions == ("us-west-2",)
    assert ray.usd_per_second / reel.usd_per_second == pytest.approx(18.75)
    assert not any(name in api.name for api in catalog.video_apis.values() for name in ("Runway", "Pika"))


def test_reel_takes_at_least_ninety_seconds(catalog):
    assert catalog.video_apis["amazon.nova-reel-v1:0"].typical_seconds >= 90


@pytest.mark.parametrize(
    ("api", "seconds", "clips"),
    [("luma.ray-v2:0-720p", 5, 22), ("luma.ray-v2:0-540p", 5, 43), ("amazon.nova-reel-v1:0", 6, 336)],
)
def test_two_warm_g7e_break_even_at_the_stated_clips_per_day(catalog, api, seconds, clips):
    pool = 2 * price(catalog, "g7e.2xlarge") * 24
    managed = catalog.video_apis[api].usd_per_clip(seconds)
    assert break_even(lambda _: pool, managed) == pytest.approx(clips, abs=1.5)


def test_p_instances_have_no_encoder_and_g_instances_do(catalog):
    assert all(catalog.gpu(name).nvenc == 0 for name in ("A100-80", "H100", "H200", "B200"))
    assert catalog.gpu("RTX-PRO-6000-BSE").nvenc == 4


def test_blackwell_g_instances_need_cuda_12_8_and_open_modules(catalog):
    for name in ("RTX-PRO-4500-BSE", "RTX-PRO-6000-BSE", "B200"):
        assert catalog.gpu(name).min_cuda == "12.8"
        assert catalog.gpu(name).needs_open_modules
    assert catalog.gpu("RTX-PRO-4500-BSE").min_driver == "R595"
    assert catalog.gpu("RTX-PRO-6000-BSE").compute_capability == "12.0"


def test_p3_is_retired_and_inf2_xlarge_has_one_chip(catalog):
    assert catalog.instance("p3.2xlarge").status == "retired"
    assert catalog.instance("inf2.xlarge").gpus == 1
    assert catalog.instance("inf2.48xlarge").gpus == 12


def test_halving_the_bits_halves_the_weights(catalog):
    model = catalog.llm("llama-3.1-8b")
    assert weight_bytes(model, "fp32") == 2 * weight_bytes(model, "bf16") == 4 * weight_bytes(model, "int8")
