"""User entries: a TOML file, a diffusers folder, a Hugging Face config, a price list, GPU metrics."""

import json
import struct

import boto3
import pytest
from botocore.stub import ANY, Stubber

from filmgate.catalog.diffusers_folder import read_video_folder, stored_params
from filmgate.catalog.huggingface import read_llm_config
from filmgate.catalog.instances import Price
from filmgate.catalog.loader import load_calibration, load_catalog, read_prices
from filmgate.catalog.refresh import fetch_prices, merge_prices, open_price_list, write_prices
from filmgate.catalog.user_file import with_user_file
from filmgate.cli.plan.metrics.csv_file import read_csv_metrics
from filmgate.errors import RunError, UsageError, WriteError
from filmgate.models.names import shipped_folder
from filmgate.planner.fit import plan_fit
from filmgate.planner.fleet.traffic import traffic_of
from filmgate.planner.llm.step_time import kv_bytes
from filmgate.planner.video.answer import plan_video
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.memory import stored_bytes
from filmgate.planner.video.question import VideoQuestion
from filmgate.planner.video.work import forward_work

CATALOG = load_catalog()
USER_FILE = """
[gpus.ACME-1]
generation = "hopper"
memory_mib = 98304
bandwidth_gb_s = 4000
bf16_tflops = 800
sm_count = 120
as_of = "2026-11-01"

[instances."acme.large"]
gpu = "ACME-1"
gpu_count = 2
vcpu = 32
ram_gib = 256
as_of = "2026-11-01"

[[prices]]
instance = "acme.large"
region = "us-east-1"
on_demand = 0.9
as_of = "2026-11-01"

[video_models.wan-distilled]
base = "wan2.1-t2v-14b"
as_of = "2026-11-01"
defaults = {steps = 4, forwards_per_step = 1}

[llms.tiny]
layers = 8
hidden = 512
heads = 8
kv_heads = 2
head_dim = 64
params = 50000000
active_params = 50000000
as_of = "2026-11-01"
"""


VARIANT = '[video_models.x]\nas_of = "2026-01-01"\n'
WAN = 'base = "wan2.1-t2v-14b"\n'


def user_file(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text(text)
    return path


def test_user_machines_and_models_are_planned_like_shipped_ones(tmp_path):
    catalog = with_user_file(CATALOG, user_file(tmp_path, USER_FILE))
    model = catalog.video_model("wan-distilled")
    assert model.defaults.steps == 4
    question = VideoQuestion(model, clip_for(model), traffic=traffic_of(2000), slo_seconds=600)
    answer = plan_video(question, catalog, load_calibration())
    assert answer.options[0].name == "acme.large"
    assert any("user file own.toml (2026-11-01)" in source for source in answer.sources)
    assert catalog.llm("tiny").layers == 8


def test_a_machine_of_your_own_needs_no_dot_in_its_name(tmp_path):
    rack = USER_FILE.replace("acme.large", "rack1")
    catalog, calibration = with_user_file(CATALOG, user_file(tmp_path, rack)), load_calibration()
    fit = plan_fit(catalog, calibration, "us-east-1", instance="Rack1")
    assert fit.verdict.startswith("rack1 (2 x ACME-1, ")
    model = catalog.video_model("wan-distilled")
    question = VideoQuestion(model, clip_for(model), instances=("rack1", "H100"))
    assert [one.name for one in plan_video(question, catalog, calibration).options] == ["rack1", "H100"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gpu.X]\n", "unknown section gpu"),
        ('[gpus.X]\ngeneration = "ada"\nmemory_mib = 1\n', "own.toml gpus: X: as_of is missing"),
        ('[gpus.X]\nmemory_mb = 1\nas_of = "2026-01-01"\n', "did you mean memory_mib"),
        ('[video_models.x]\nas_of = "2026-01-01"\n', "base is missing"),
        ('[video_models.x]\nbase = "wan2.1-t2v-14b"\n', "as_of is missing"),
        ('[video_models.x]\nbase = "wan2.1-t2v-14b"\nas_of = "2026-01-01"\nvea = 1\n', "unknown key vea"),
        ("[[[", "cannot be read"),
        ("gpus = 3\n", "own.toml gpus: input should be a valid dictionary, got 3"),
        ("[gpus]\nX = 3\n", "own.toml gpus: X: input should be a valid dictionary, got 3"),
        ('[instances."x.large"]\nvcpu = 4\n', "own.toml instances: x.large: gpu is missing"),
        ('[instances."x.large"]\ngpu = "H1000"\n', "x.large: gpu: 'H1000' is not in the catalog"),
        (f"{VARIANT}base = 'wan9'\n", "own.toml video_models: x: base: 'wan9' is not in the catalog"),
        (f"{VARIANT}{WAN}size_multiple = 'big'\n", "video_models: x: size_multiple: input should be"),
        (f"{VARIANT}{WAN}vae = 'other'\n", "video_models: x: vae cannot be changed"),
        (f"{VARIANT}{WAN}defaults = {{steps = 0}}\n", "x: defaults: steps: input should be greater than 0"),
        (f"{VARIANT}{WAN}denoiser = {{layer = 3}}\n", "x: denoiser: unknown key layer; did you mean layers"),
    ],
)
def test_a_wrong_file_is_rejected_with_the_row_and_the_key(tmp_path, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        with_user_file(CATALOG, user_file(tmp_path, text))
    assert caught.value.option == "--catalog"


@pytest.mark.parametrize("value", ["-1.0", "nan", "inf", "true", '"4"'])
def test_a_price_must_be_a_finite_number_of_at_least_zero(tmp_path, value):
    text = f'[[prices]]\ninstance = "a.b"\nregion = "us-east-1"\nas_of = "2026-11-01"\non_demand = {value}\n'
    with pytest.raises(UsageError, match="own.toml prices: row 1: on_demand: input should be"):
        with_user_file(CATALOG, user_file(tmp_path, text))


@pytest.mark.parametrize("cell", ["-1", "nan", "inf", "cheap"])
def test_a_price_list_with_a_wrong_price_is_rejected_with_the_line(tmp_path, cell):
    file = tmp_path / "prices.csv"
    file.write_text(f"instance,region,on_demand,source,as_of\na.b,us-east-1,{cell},me,2026-11-01\n")
    with pytest.raises(UsageError, match="prices.csv line 2: on_demand: input should be") as caught:
        read_prices(file)
    assert caught.value.option == "--prices"


def write_safetensors(path, shapes):
    header = {
        name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()
    }
    text = json.dumps({**header, "__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def diffusers_folder(tmp_path, **config):
    folder = tmp_path / "my-wan"
    index = {
        "_class_name": "WanPipeline",
        "transformer": ["diffusers", "WanTransformer3DModel"],
        "vae": ["diffusers", "AutoencoderKLWan"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
    }
    base = {"num_attention_heads": 40, "attention_head_dim": 128, "num_layers": 40, "ffn_dim": 13824}
    for name, content in (
        ("transformer", base | {"out_channels": 16} | config),
        ("vae", {"z_dim": 16}),
        ("text_encoder", {}),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(content))
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def test_a_diffusers_folder_of_a_known_model_gives_the_same_answers(tmp_path):
    model = read_video_folder(diffusers_folder(tmp_path), CATALOG.video_models, "2026-11-15")
    known = CATALOG.video_model("wan2.1-t2v-14b")
    assert model.vae == known.vae
    clip = clip_for(known)
    assert forward_work(model, clip) == forward_work(known, clip)
    assert model.text_encoders == known.text_encoders


def test_a_folder_of_another_size_is_scaled_and_weighed_by_its_files(tmp_path):
    folder = diffusers_folder(tmp_path, num_attention_heads=20, num_layers=20, ffn_dim=6912)
    write_safetensors(folder / "transformer" / "model.safetensors", {"a": [1000, 1000], "b": [24]})
    model = read_video_folder(folder, CATALOG.video_models, "2026-11-15")
    assert model.denoiser.params == stored_params(folder / "transformer") == 1_000_024
    assert model.denoiser.width == 2560
    whole = forward_work(CATALOG.video_model("wan2.1-t2v-14b"), clip_for(model)).linear_flops
    assert forward_work(model, clip_for(model)).linear_flops == pytest.approx(whole / 8, rel=0.01)


def test_the_built_in_model_is_planned_with_its_own_clip_and_weights():
    """Not with the clip of the catalog model that it is scaled from."""
    folder = shipped_folder("flipbook")
    model = read_video_folder(folder, CATALOG.video_models, "2026-11-15")
    clip = clip_for(model)
    assert (str(clip.size), clip.frames, clip.fps, clip.steps) == ("256x256", 33, 16, 10)
    assert clip.forwards_per_step == 1
    assert (model.vae.space_ratio, model.size_multiple) == (16, 32)
    stored = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    assert stored_bytes(model) == pytest.approx(stored, rel=0.01)


@pytest.mark.parametrize("text", ['{"steps": 0}', '{"stepz": 4}', "[1]", "no"])
def test_a_wrong_clip_in_a_folder_is_rejected_with_its_file(tmp_path, text):
    folder = diffusers_folder(tmp_path)
    (folder / "filmgate.json").write_text(text)
    with pytest.raises(UsageError, match="filmgate.json"):
        read_video_folder(folder, CATALOG.video_models, "2026-11-15")


def test_a_folder_of_an_unknown_class_is_rejected_with_the_known_ones(tmp_path):
    folder = diffusers_folder(tmp_path)
    index = json.loads((folder / "model_index.json").read_text())
    index["transformer"][1] = "FluxTransformer2DModel"
    (folder / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r"known: .*WanTransformer3DModel"):
        read_video_folder(folder, CATALOG.video_models, "2026-11-15")


def test_a_folder_with_a_missing_or_broken_entry_is_rejected(tmp_path):
    folder = diffusers_folder(tmp_path)
    (folder / "transformer/config.json").write_text('{"attention_head_dim": 128, "num_layers": 40}')
    with pytest.raises(UsageError, match="has no num_attention_heads"):
        read_video_folder(folder, CATALOG.video_models, "2026-11-15")
    (folder / "model_index.json").write_text('{"transformer": 3, "vae": []}')
    with pytest.raises(UsageError, match="my-wan is not a diffusers video model"):
        read_video_folder(folder, CATALOG.video_models, "2026-11-15")


def test_a_broken_weights_file_is_rejected(tmp_path):
    folder = diffusers_folder(tmp_path)
    (folder / "transformer" / "x.safetensors").write_bytes(b"\x01")
    with pytest.raises(UsageError, match="not a safetensors file"):
        read_video_folder(folder, CATALOG.video_models, "2026-11-15")


LLAMA_70B = {
    "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "intermediate_size": 28672, "vocab_size": 128256,
}  # fmt: skip
MIXTRAL = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
DEEPSEEK = {
    "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "vocab_size": 129280, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
QWEN3_4B = {
    "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "known"),
    [
        (LLAMA_70B, "llama-3.3-70b"),
        (MIXTRAL, "mixtral-8x7b"),
        (DEEPSEEK, "deepseek-v3"),
        (QWEN3_4B, "qwen3-4b"),
    ],
)
def test_a_config_json_gives_the_parameters_and_cache_of_the_released_model(tmp_path, config, known):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model, truth = read_llm_config(path, "2026-11-15"), CATALOG.llm(known)
    assert model.params == pytest.approx(truth.params, rel=0.001)
    assert model.active_params == pytest.approx(truth.active_params, rel=0.02)
    assert kv_bytes(model, 8192) == kv_bytes(truth, 8192)


def test_a_config_with_sliding_layers_counts_them(tmp_path):
    path = tmp_path / "config.json"
    layers = ["sliding_attention", "sliding_attention", "full_attention"] * 10
    path.write_text(
        json.dumps(LLAMA_70B | {"num_hidden_layers": 30, "layer_types": layers, "sliding_window": 512})
    )
    model = read_llm_config(path, "2026-11-15")
    assert model.windowed_layers == 20
    assert kv_bytes(model, 8192) < 0.4 * kv_bytes(CATALOG.llm("llama-3.3-70b"), 8192)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"hidden_size": 8}', "has no num_attention_heads"),
        ("[]", "is not the config.json of a language model"),
        ('{"hidden_size": "x", "num_attention_heads": 2, "num_hidden_layers": 3}', "hidden_size must be"),
        (json.dumps(LLAMA_70B | {"hidden_size": None}), "is not the config.json of a language model"),
    ],
)
def test_a_config_of_another_kind_is_rejected(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_llm_config(path, "2026-11-15")


def product(region, usd):
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
    terms = {"OnDemand": {"t": {"priceDimensions": {"d": dimension}}}}
    return json.dumps({"product": {"attributes": {"regionCode": region}}, "terms": terms})


def test_a_refresh_reads_all_pages_and_keeps_the_spot_range(tmp_path):
    client = boto3.client(
        "pricing", region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    with Stubber(client) as stub:
        expected = {"ServiceCode": "AmazonEC2", "Filters": ANY}
        first = {"PriceList": [product("us-east-1", "3.5"), product("us-west-2", "0")], "NextToken": "more"}
        stub.add_response("get_products", first, expected)
        stub.add_response(
            "get_products", {"PriceList": [product("sa-east-1", "5.1")]}, {**expected, "NextToken": "more"}
        )
        fresh = fetch_prices(client, ["g7e.2xlarge"], "2026-11-15")
        stub.assert_no_pending_responses()
    assert [(p.region, p.on_demand) for p in fresh] == [("us-east-1", 3.5), ("sa-east-1", 5.1)]
    merged = merge_prices(CATALOG.prices.values(), fresh)
    file = tmp_path / "prices.csv"
    write_prices(merged, file)
    again = {(p.instance, p.region): p for p in read_prices(file)}
    assert len(again) == len(CATALOG.prices) + 1
    updated, before = again["g7e.2xlarge", "us-east-1"], CATALOG.price("g7e.2xlarge", "us-east-1")
    assert (updated.on_demand, updated.as_of, updated.spot_min) == (3.5, "2026-11-15", before.spot_min)
    assert updated.source == f"AWS Price List API; other rates: {before.source} {before.as_of}"


def test_rates_that_a_refresh_keeps_have_the_date_of_their_own_source():
    """After a second refresh too."""
    old = Price("a.large", "us-east-1", "my contract", "2026-01-01", on_demand=3.0, savings_1y=2.0)
    for day, usd in (("2026-02-01", 3.1), ("2026-03-01", 3.2)):
        (old,) = merge_prices([old], [Price("a.large", "us-east-1", "API", day, on_demand=usd)])
    assert (old.on_demand, old.savings_1y, old.as_of) == (3.2, 2.0, "2026-03-01")
    assert old.source == "API; other rates: my contract 2026-01-01"


def test_a_refresh_without_credentials_names_the_variables_to_set(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UsageError, match="AWS_PROFILE"):
        open_price_list()


def test_a_denied_refresh_names_the_missing_permission():
    client = boto3.client(
        "pricing", region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    with Stubber(client) as stub:
        message = "User: arn:aws:iam::1:user/x is not authorized to perform: pricing:GetProducts"
        stub.add_client_error("get_products", "AccessDeniedException", message)
        with pytest.raises(RunError, match="Pricing denied GetProducts: pricing:GetProducts is missing"):
            fetch_prices(client, ["g7e.2xlarge"], "2026-11-15")


def test_a_price_list_that_cannot_be_written_is_reported(tmp_path):
    with pytest.raises(WriteError, match="cannot be written"):
        write_prices([], tmp_path / "missing" / "prices.csv")


def test_a_byte_order_mark_is_not_a_part_of_the_first_column(tmp_path):
    """Excel and PowerShell write one."""
    own = tmp_path / "mine.toml"
    own.write_text('[video_models.mine]\nbase = "svd-xt"\nas_of = "2026-11-15"\n', encoding="utf-8-sig")
    assert with_user_file(CATALOG, own).video_model("mine").source == "user file mine.toml"
    metrics, prices = tmp_path / "week.csv", tmp_path / "prices.csv"
    metrics.write_text("gpu_util,memory_used_mib\n55,1024\n", encoding="utf-8-sig")
    assert read_csv_metrics(metrics).gpu_share == (0.55,)
    row = "instance,region,source,as_of,on_demand\ng6e.xlarge,us-east-1,ours,2026-11-15,1.5\n"
    prices.write_text(row, encoding="utf-8-sig")
    assert [price.on_demand for price in read_prices(prices)] == [1.5]


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", float("inf")), ("hidden_size", -4096), ("num_attention_heads", 0), ("vocab_size", "9")],
)
def test_a_config_with_an_impossible_number_is_rejected_with_its_key(tmp_path, key, value):
    config = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000,
              "intermediate_size": 11008}  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config | {key: value}))
    with pytest.raises(UsageError, match=key):
        read_llm_config(file, "2026-11-16")


def test_a_model_whose_own_default_cannot_be_rendered_is_rejected_with_the_nearest(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(
        '[video_models.x]\nbase = "wan2.1-t2v-14b"\nas_of = "2026-11-16"\ndefaults = {frames = 82}\n'
    )
    with pytest.raises(UsageError, match="the nearest is 81"):
        with_user_file(load_catalog(), file)
