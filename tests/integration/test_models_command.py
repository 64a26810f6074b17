"""`filmgate models` with moto's S3: push, pull, list, verify, evict and use."""

import json
import secrets
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
from prometheus_client import CollectorRegistry

from filmgate.cli import main
from filmgate.cli.generate import generate
from filmgate.cli.worker import worker
from filmgate.database import open_database
from filmgate.errors import ModelError, OutOfMemory, UsageError
from filmgate.jobs import VideoSpec
from filmgate.models.names import NamedModel, shipped_folder
from filmgate.models.weights import ensure_adapter, open_cache
from filmgate.models.weights.doctor import check_models_bucket
from filmgate.models.weights.location import parse_location
from filmgate.models.weights.remote import open_remote
from filmgate.pipeline.generate import LocalModel
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.loading.memory import estimate_bytes
from filmgate.settings import ModelSettings, PipelineSettings, QueueSettings, Settings
from filmgate.telemetry.findings import Verdict
from filmgate.worker.base import RenderTask
from filmgate.worker.metrics import WorkerMetrics
from tests.commands import run_filmgate
from tests.integration.test_model_cache import flip_a_byte
from tests.loras import save_lora
from tests.proxy import Proxy, s3_error
from tests.sqs_pair import REGION


class ModelSite:
    """A bucket for models, and the settings to use it."""

    def __init__(self, url, folder):
        self.bucket = f"film-{secrets.token_hex(4)}"
        self.client = boto3.client("s3", endpoint_url=url, region_name=REGION)
        self.client.create_bucket(
            Bucket=self.bucket, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        self.url = f"s3://{self.bucket}/models/tiny/v1/"
        (folder / "data").mkdir(exist_ok=True)
        self.settings = ModelSettings(endpoint=url, region=REGION)
        self.environ = {
            "FILMGATE_DATA": str(folder / "data"),
            "FILMGATE_MODELS__ENDPOINT": url,
            "FILMGATE_MODELS__REGION": REGION,
        }

    def remote(self, url=None):
        return open_remote(parse_location(url or self.url), self.settings)

    def cache(self, folder):
        return open_cache(self.settings, folder / "data")

    def run(self, *arguments):
        return run_filmgate(self.environ["FILMGATE_DATA"], "models", *arguments, **self.environ)

    def keys(self):
        listed = self.client.list_objects_v2(Bucket=self.bucket)
        return {entry["Key"].removeprefix("models/tiny/v1/") for entry in listed.get("Contents", [])}


@pytest.fixture
def site(aws_url, tmp_path):
    return ModelSite(aws_url, tmp_path)


@pytest.fixture
def folder(tmp_path):
    """A model's folder, with the hidden files of a hub."""
    model = tmp_path / "tiny"
    for path, data in {
        "model_index.json": b"{}",
        "vae/weights.safetensors": secrets.token_bytes(6 << 20),
        ".cache/lock": b"",
    }.items():
        (model / path).parent.mkdir(parents=True, exist_ok=True)
        (model / path).write_bytes(data)
    return model


def test_a_push_sends_the_key_and_the_doctor_looks_at_versions_and_encryption(site, tmp_path):
    key = boto3.client("kms", endpoint_url=site.settings.endpoint, region_name=REGION).create_key()
    arn = key["KeyMetadata"]["Arn"]
    settings = site.settings.model_copy(update={"kms_key": arn, "url": f"s3://{site.bucket}/models"})
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "model_index.json").write_text("{}")
    open_remote(parse_location(site.url), settings).push(folder)
    for name in sorted(site.keys()):
        head = site.client.head_object(Bucket=site.bucket, Key=f"models/tiny/v1/{name}")
        assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", arn)
    versions, encryption = check_models_bucket(settings)
    assert (versions.verdict, "put-bucket-versioning" in versions.remedy) == (Verdict.WARN, True)
    assert encryption.verdict is Verdict.OK
    site.client.put_bucket_versioning(Bucket=site.bucket, VersioningConfiguration={"Status": "Enabled"})
    versions, encryption = check_models_bucket(settings.model_copy(update={"kms_key": ""}))
    assert (versions.verdict, encryption.verdict) == (Verdict.OK, Verdict.WARN)
    default = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": arn}}
    site.client.put_bucket_encryption(
        Bucket=site.bucket, ServerSideEncryptionConfiguration={"Rules": [default]}
    )
    _, encryption = check_models_bucket(settings.model_copy(update={"kms_key": ""}))
    assert (encryption.verdict, arn in encryption.message) == (Verdict.OK, True)
    assert list(check_models_bucket(ModelSettings())) == []


def test_a_push_uploads_files_and_manifest_and_a_second_one_uploads_nothing(site, folder):
    pushed = site.remote().push(folder)
    assert site.keys() == {"model_index.json", "vae/weights.safetensors", "manifest.json"}
    assert (pushed.uploaded_files, pushed.is_already_published) == (2, False)
    assert site.remote().push(folder).is_already_published


def test_an_interrupted_push_resumes_where_it_stopped(site, folder):
    site.remote().push(folder)
    site.client.delete_object(Bucket=site.bucket, Key="models/tiny/v1/manifest.json")
    site.client.delete_object(Bucket=site.bucket, Key="models/tiny/v1/model_index.json")
    assert site.remote().push(folder).uploaded_files == 1


def test_a_version_is_never_overwritten(site, folder):
    site.remote().push(folder)
    (folder / "model_index.json").write_text('{"_class_name": "Other"}')
    with pytest.raises(UsageError, match="push them as v2"):
        site.remote().push(folder)
    site.remote(site.url.replace("v1", "v2")).push(folder)


def test_the_first_of_two_concurrent_pushes_wins(site, folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "model_index.json").write_text('{"_class_name": "Other"}')
    with pytest.raises(UsageError, match="another push"):
        site.remote().push(folder, lambda _path: site.remote().push(other))


def test_a_push_that_finds_its_own_manifest_has_succeeded(site, folder):
    """boto3 repeats the last request if its response is lost; S3 rejects the repetition."""
    site.remote().push(folder, lambda _path: site.remote().push(folder))
    assert site.remote().push(folder).is_already_published


def test_a_folder_that_is_not_a_pipeline_is_not_pushed(site, tmp_path):
    with pytest.raises(UsageError, match=r"model_index\.json"):
        site.remote().push(tmp_path)


def test_a_missing_bucket_is_reported_as_missing(site, folder):
    with pytest.raises(ModelError, match="NoSuchBucket"):
        site.remote("s3://no-such-bucket-here/models/tiny/v1/").push(folder)


def test_a_push_without_permission_names_the_permission(site, folder, aws_url):
    with Proxy(aws_url) as proxy:
        proxy.fail(r"^(PUT|POST) .*safetensors", **s3_error("AccessDenied"))
        settings = site.settings.model_copy(update={"endpoint": proxy.url})
        with pytest.raises(ModelError, match="s3:PutObject is missing"):
            open_remote(parse_location(site.url), settings).push(folder)


def test_push_pull_list_verify_evict(site, folder):
    pushed = json.loads(site.run("push", str(folder), site.url, "--json").stdout)
    assert (pushed["files"], pushed["uploaded_files"]) == (2, 2)
    pulled = site.run("pull", site.url)
    cached = pulled.stdout.strip()
    assert pulled.returncode == 0, pulled.stderr
    listed = json.loads(site.run("list", "--json").stdout)["models"][-1]
    assert (listed["model"], listed["source"], listed["folder"]) == (site.url, "s3", cached)
    assert listed["state"] == "ready"
    found = site.run("search", "TINY")
    assert site.url in found.stdout
    assert f"data folder: {site.environ['FILMGATE_DATA']}" in found.stderr
    assert site.run("search", "nothing-like-this").returncode == 1
    assert site.run("verify").stdout.split() == ["intact", site.url]
    flip_a_byte(Path(cached) / "vae/weights.safetensors")
    damaged = site.run("verify", site.url)
    assert (damaged.returncode, damaged.stderr.count("error: ")) == (1, 1)
    assert "vae/weights.safetensors damaged; pull it again" in damaged.stderr
    assert site.run("evict", site.url).stdout.strip() == site.url
    assert site.run("evict", site.url).returncode == 1
    assert site.run("evict").returncode == 2


def test_an_adapter_in_the_bucket_is_pushed_pulled_and_held_while_it_is_used(site, tmp_path):
    folder = tmp_path / "style"
    folder.mkdir()
    (folder / "style.safetensors").write_bytes(b"factors")
    url = f"s3://{site.bucket}/adapters/style/v1/"
    site.remote(url).push(folder)
    cache = site.cache(tmp_path)
    with ExitStack() as held:
        pulled = ensure_adapter(url, cache, held)
        assert (pulled / "style.safetensors").read_bytes() == b"factors"
        assert cache.evict(parse_location(url)) is False
    assert cache.evict(parse_location(url)) is True
    (folder / "second.safetensors").write_bytes(b"factors")
    with pytest.raises(
        UsageError, match="neither a diffusers pipeline, which has a model_index.json, nor a LoRA"
    ):
        site.remote(url).push(folder)


def test_a_worker_renders_with_an_adapter_from_the_bucket_and_stays_healthy(site, tmp_path, monkeypatch):
    """The job after one with an adapter, and the self-check, use the weights of the model."""
    folder = tmp_path / "style"
    folder.mkdir()
    transformer = load_model("miniature", PipelineSettings(device="cpu")).pipe.transformer
    save_lora(folder / "style.safetensors", transformer, ["blocks.0.attn1.to_q", "blocks.0.ffn.net.2"])
    site.remote(url := f"s3://{site.bucket}/adapters/style/v1/").push(folder)
    (tmp_path / "adapters.toml").write_text(f'[style]\nmodel = "miniature"\nlocation = "{url}"\n')
    monkeypatch.setenv("FILMGATE_MODELS__ADAPTERS_FILE", str(tmp_path / "adapters.toml"))
    spec = VideoSpec("miniature", "a red ball", 32, 32, 9 / 16, 16, steps=2, seed=1, guidance=1.0)
    clips = []

    def check(runner):
        for lora in (None, "style:1", None):
            *_, source = runner.render(RenderTask(replace(spec, lora=lora)))
            clips.append(b"".join(source.open_chunks()))
        list(runner.render(RenderTask(replace(spec, lora="style:1"))))
        runner.recheck()

    run_worker_with(check, ["miniature"], site, tmp_path, monkeypatch)
    assert clips[0] == clips[2] != clips[1]


@pytest.mark.parametrize("command", ["pull", "verify", "evict"])
def test_what_is_no_model_is_answered_with_every_kind_of_name(monkeypatch, capsys, command):
    monkeypatch.setattr(sys, "argv", ["filmgate", "models", command, "not/a/model"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == (
        "error: MODEL: 'not/a/model' is not a model that can be pulled; give a name of the catalog such as "
        "wan2.1-t2v-1.3b, a hub id such as Wan-AI/Wan2.1-T2V-1.3B-Diffusers, or s3://BUCKET/models/NAME/vN/\n"
    )


def test_without_boto3_the_error_is_one_line_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[aws\]'"):
        open_remote(parse_location("s3://film/models/wan/v1"), ModelSettings())


def test_a_model_that_cannot_be_loaded_may_be_evicted(site, folder, tmp_path):
    site.remote().push(folder)
    settings = Settings(data=tmp_path / "data", models=site.settings)
    with pytest.raises(ModelError, match="cannot be loaded") as failed:
        LocalModel(NamedModel("tiny", site.url), settings)
    assert failed.tb is not None, "the traceback keeps the model alive"
    assert site.cache(tmp_path).evict(parse_location(site.url)) is True


def test_generate_uses_a_model_from_the_bucket(site, tmp_path, monkeypatch, capsys):
    site.remote().push(shipped_folder("miniature"))
    for name, value in site.environ.items():
        monkeypatch.setenv(name, value)
    generate("a ball", tmp_path / "clip.mp4", site.url, size="64x64", frames=5, steps=1, is_json=True)
    made = json.loads(capsys.readouterr().out)
    assert (made["model"], made["frames"]) == ("tiny", 5)
    assert [entry.is_in_use for entry in site.cache(tmp_path).list_entries()] == [False]


def run_worker_with(check, models, site, tmp_path, monkeypatch):
    """`filmgate worker` with the check in place of its loop; test_worker_command.py runs the loop."""
    for name, value in site.environ.items():
        monkeypatch.setenv(name, value)

    def run(_settings, make_runner, *_):
        registry = CollectorRegistry()
        database = open_database(QueueSettings(), tmp_path)
        runner = make_runner(database, WorkerMetrics(registry), registry)
        runner.check()
        check(runner)
        database.close()

    monkeypatch.setattr("filmgate.worker_process.run_worker", run)
    worker(models)


def read_uses(site, tmp_path):
    return {entry.location.name: entry.is_in_use for entry in site.cache(tmp_path).list_entries()}


def test_a_worker_uses_a_model_from_the_bucket_and_prevents_its_eviction(site, tmp_path, monkeypatch):
    site.remote().push(shipped_folder("miniature"))

    def check(runner):
        assert runner.models == ("tiny",)
        assert read_uses(site, tmp_path) == {"tiny": True}

    run_worker_with(check, [site.url], site, tmp_path, monkeypatch)
    assert site.cache(tmp_path).evict(parse_location(site.url))


def test_a_model_that_is_not_loaded_may_be_evicted_and_is_pulled_for_the_next_job(
    site, tmp_path, monkeypatch
):
    """One worker serves more models than its disk holds."""
    folder, other = shipped_folder("miniature"), site.url.replace("/tiny/", "/other/")
    site.remote().push(folder)
    site.remote(other).push(folder)
    size = estimate_bytes(str(folder), PipelineSettings(device="cpu"), None)
    monkeypatch.setattr("filmgate.worker.gpu_runner.budget_bytes", lambda _: size + 1)

    def check(runner):
        assert read_uses(site, tmp_path) == {"tiny": True, "other": False}
        assert site.cache(tmp_path).evict(parse_location(other))
        spec = VideoSpec("other", "a red ball", 32, 32, 9 / 16, 16, steps=2, seed=1, guidance=1.0)
        list(runner.render(RenderTask(spec)))
        assert read_uses(site, tmp_path) == {"tiny": True, "other": True}

    run_worker_with(check, [site.url, other], site, tmp_path, monkeypatch)


def test_a_model_that_does_not_fit_on_the_device_may_be_evicted(site, tmp_path, monkeypatch):
    folder, other = shipped_folder("miniature"), site.url.replace("/tiny/", "/other/")
    site.remote().push(folder)
    site.remote(other).push(folder)
    needed = [2 << 30, 2 << 30, 3 << 30]  # each model is loaded once at the start, then `other` has grown
    monkeypatch.setattr("filmgate.worker.gpu_runner.estimate_bytes", lambda *_: needed.pop(0))
    monkeypatch.setattr("filmgate.worker.gpu_runner.budget_bytes", lambda _: 2 << 30)

    def check(runner):
        spec = VideoSpec("other", "a red ball", 32, 32, 9 / 16, 16, steps=2, seed=1, guidance=1.0)
        with pytest.raises(OutOfMemory, match="other needs 3.0 GiB of GPU memory, but only 2.0 GiB"):
            list(runner.render(RenderTask(spec)))
        assert read_uses(site, tmp_path) == {"tiny": True, "other": False}

    run_worker_with(check, [site.url, other], site, tmp_path, monkeypatch)


MEASURE_MEMORY = """
import sys, torch
torch.set_num_threads(1)
from filmgate.pipeline.loading.loader import load_model
from filmgate.settings import PipelineSettings

def private_bytes():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

settings = PipelineSettings(device="cpu")
load_model("miniature", settings)
before = private_bytes()
model = load_model(sys.argv[1], settings)
grown = private_bytes() - before
modules = [part for part in model.pipe.components.values() if isinstance(part, torch.nn.Module)]
print(grown, sum(weights.nbytes for part in modules for weights in part.parameters()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_loading_maps_the_weights_without_a_second_copy(tmp_path):
    """Private memory before and after loading 77 MiB of weights; mapped pages of the file do not count."""
    build_large(tmp_path / "large")
    output = subprocess.check_output(
        [sys.executable, "-c", MEASURE_MEMORY, str(tmp_path / "large")], text=True
    )
    grown_bytes, weight_bytes = map(int, output.split())
    assert weight_bytes > 50 << 20
    assert grown_bytes < weight_bytes * 0.15


def build_large(folder):
    """Wan's classes with wide layers in transformer and text encoder, and the zoo's small VAE."""
    import diffusers
    import transformers

    from tests.zoo import build_pipeline

    small = build_pipeline("wan2.1")
    config = transformers.UMT5Config(
        vocab_size=384, d_model=512, d_kv=64, d_ff=1024, num_layers=3, num_heads=8
    )
    wide = {"num_attention_heads": 8, "attention_head_dim": 64, "text_dim": 512, "ffn_dim": 1024}
    transformer = {name: value for name, value in small.transformer.config.items() if name[0] != "_"} | wide
    pipe = diffusers.WanPipeline(
        tokenizer=small.tokenizer,
        text_encoder=transformers.UMT5EncoderModel(config),
        transformer=diffusers.WanTransformer3DModel(**transformer | {"num_layers": 3}),
        vae=small.vae,
        scheduler=small.scheduler,
    )
    pipe.save_pretrained(folder)
