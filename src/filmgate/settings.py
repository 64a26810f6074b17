"""One frozen tree of settings: filmgate.toml first, then FILMGATE_* variables over it.

A nested key is written `[pipeline] crf = 20` in the file and `FILMGATE_PIPELINE__CRF=20` in the environment.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from filmgate.errors import SettingsError

PREFIX = "FILMGATE_"
FILE_VARIABLE = "FILMGATE_CONFIG"
DEFAULT_FILE = Path("filmgate.toml")


class Slice(BaseModel):
    """One part's settings: frozen, and strict about keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PipelineSettings(Slice):
    """What the frame pipeline needs to know."""

    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="auto: bfloat16 on a GPU, float32 on a CPU"
    )
    offload: Literal["auto", "none", "model", "layers"] = Field(
        default="auto",
        description="what leaves the GPU while it is not needed; auto decides from free memory",
    )
    compile: Literal["auto", "off", "on"] = Field(
        default="auto",
        description="compiled transformer blocks; auto: in a worker on CUDA, where measured and worthwhile",
    )
    compile_cache: str = Field(
        default="", description="folder of compiled kernels; empty: torch's own, under the temporary folder"
    )
    text_cache_bytes: int = Field(
        default=256 << 20, ge=0, description="host memory for embeddings of prompts seen before; 0: none"
    )
    quality: Literal["full", "balanced", "draft"] = Field(
        default="full", description="full: every step in whole; others reuse parts of steps and lose a little"
    )
    decoder: Literal["auto", "exact", "fast"] = Field(
        default="auto",
        description="exact: bit for bit the VAE's own; fast: kernels of our own; auto: fast where proven",
    )
    codec: Literal["h264", "hevc", "av1"] = Field(
        default="h264", description="video codec of the finished file"
    )
    encoder: Literal["auto", "software", "nvenc"] = Field(
        default="auto", description="auto: NVENC where a real frame comes out of it, else software"
    )
    preset: str = Field(default="veryfast", description="encoder preset of the software encoders")
    crf: int = Field(default=18, ge=0, le=51, description="constant quality; lower is better and larger")
    device_slots: int = Field(default=2, ge=2, le=16, description="chunks the device ring holds")
    host_slots: int = Field(default=8, ge=2, le=64, description="chunks the page-locked host ring holds")


class QueueSettings(Slice):
    """Leases, retries and where the job records live."""

    url: str = Field(
        default="", description="sqlite:///FILE or postgresql://...; empty: filmgate.db in the data folder"
    )
    lease_seconds: float = Field(
        default=30.0, ge=1, le=3600, description="a silent worker loses its job after"
    )
    max_attempts: int = Field(default=3, ge=1, le=20, description="attempts before a job fails for good")
    backoff_seconds: float = Field(
        default=2.0, ge=0, le=600, description="wait before the second attempt; doubles after that"
    )
    retry_window_seconds: float = Field(
        default=900.0, ge=0, le=86400, description="how long an SDK's retry of the same body is the same job"
    )
    retention_seconds: float = Field(
        default=7 * 86400.0, ge=60, description="a finished job and its clip are removed after"
    )
    timeout_seconds: float = Field(default=5.0, ge=0.1, le=60, description="patience with a busy database")
    delivery: str = Field(
        default="", description="sqs://NAME.fifo or its https URL wakes workers; empty: they ask the database"
    )
    region: str = Field(default="", description="AWS region of the delivery queue; empty: the environment's")
    endpoint: str = Field(default="", description="address of SQS, if it is not AWS's own")
    wait_seconds: float = Field(default=5.0, ge=0, le=20, description="how long one wait for a message is")
    sweep_seconds: float = Field(default=15.0, ge=0, le=600, description="time between looks for lost ones")


class StoreSettings(Slice):
    """Where clips, sources and checkpoints live."""

    url: str = Field(
        default="", description="file:///DIR or s3://BUCKET/PREFIX; empty: objects in the data folder"
    )
    keyring: str = Field(
        default="", description="file:///DIR of tenant keys, or kms://; empty: keys in the data folder"
    )
    kms_key: str = Field(
        default="alias/filmgate-{tenant}",
        description="a tenant's KMS key, for s3:// and kms://; empty: the bucket's own default",
    )
    region: str = Field(default="", description="AWS region of bucket and keys; empty: AWS_DEFAULT_REGION")
    endpoint: str = Field(default="", description="S3 at another address, such as http://minio:9000")
    kms_endpoint: str = Field(default="", description="KMS at another address")
    link_seconds: float = Field(default=900.0, ge=1, le=604800, description="how long a signed link works")
    min_free_bytes: int = Field(
        default=1 << 30, ge=0, description="below this much free disk no new work is accepted"
    )


class WorkerSettings(Slice):
    """How a worker process behaves."""

    heartbeat_seconds: float = Field(default=5.0, gt=0, le=600, description="how often a lease is renewed")
    progress_seconds: float = Field(default=0.5, gt=0, le=60, description="time between progress reports")
    poll_seconds: float = Field(default=0.5, gt=0, le=60, description="wait between looks at an empty queue")
    drain_seconds: float = Field(
        default=25.0, ge=0, le=86400, description="after SIGTERM: time to finish before a job is handed back"
    )
    store_patience_seconds: float = Field(
        default=600.0, ge=0, le=86400, description="how long a finished clip waits for a store that fails"
    )


class ApiSettings(Slice):
    """The HTTP edge."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on; 0: any free one")
    open: bool = Field(default=False, description="serve callers without a key, on loopback alone")
    max_body_bytes: int = Field(default=32 << 20, ge=1024, description="largest request body")
    content: Literal["proxy", "redirect"] = Field(
        default="proxy", description="how a clip is handed out: through the API, or by a signed link"
    )
    watch_seconds: float = Field(
        default=0.25, gt=0, le=10, description="how often the one poller looks for changes to watched jobs"
    )
    usd_per_gpu_hour: float = Field(
        default=0.0, ge=0, description="prices a job's GPU-seconds in its cost; 0: unknown"
    )
    tls_certificate: str = Field(default="", description="PEM file of the server's certificate chain")
    tls_key: str = Field(default="", description="PEM file of the certificate's private key")
    tls_client_ca: str = Field(
        default="", description="PEM file; clients must show a certificate it signed, which names the tenant"
    )


class AdmissionSettings(Slice):
    """What may enter, and what is promised to it."""

    default_model: str = Field(default="flipbook", description="the model of a request that names none")
    models_file: str = Field(default="", description="TOML file of further model cards")
    rules_file: str = Field(default="", description="TOML file of screening rules; empty: those shipped")
    slo_seconds: float = Field(default=90.0, gt=0, description="a job's deadline, counted from acceptance")
    promise_seconds: float = Field(
        default=900.0, gt=0, description="a request that would be finished later than this is refused (429)"
    )
    gpus: int = Field(default=1, ge=1, description="GPUs that drain the backlog")
    prompt_max_chars: int = Field(default=4000, ge=1, le=100_000, description="longest prompt")
    image_max_bytes: int = Field(default=16 << 20, ge=1024, description="largest reference image")
    image_max_pixels: int = Field(default=25_000_000, ge=1024, description="most pixels of a reference image")
    image_seconds: float = Field(default=10.0, gt=0, le=60, description="time limit for decoding an image")
    fetch: bool = Field(default=True, description="fetch reference images from public URLs")
    fetch_hosts: str = Field(default="", description="only these hosts, comma-separated; empty: any public")
    fetch_seconds: float = Field(default=10.0, gt=0, le=60, description="time limit for fetching a URL")


class ModelSettings(Slice):
    """Model weights in S3, and the cache of them on this node."""

    cache: str = Field(default="", description="folder of pulled models; empty: in the data folder")
    cache_bytes: int = Field(default=0, ge=0, description="most the cache may take; 0: what the disk has")
    region: str = Field(default="", description="AWS region of the model bucket; empty: the environment's")
    endpoint: str = Field(default="", description="address of S3, if it is not AWS's own")
    connections: int = Field(default=16, ge=1, le=256, description="ranges that are pulled at once")
    range_bytes: int = Field(default=16 << 20, ge=1 << 16, description="how much one request pulls")


class FallbackSettings(Slice):
    """The managed provider that renders what our own GPUs would finish too late."""

    provider: Literal["disabled", "http", "bedrock"] = Field(
        default="disabled", description="http: any OpenAI-compatible video endpoint; bedrock: AWS"
    )
    url: str = Field(default="", description="http: base address of the endpoint, ending in /v1")
    api_key: str = Field(default="", description="http: key of the endpoint; better in key_file")
    key_file: str = Field(default="", description="http: file with the key of the endpoint")
    model: str = Field(default="", description="model to ask for; http: empty asks for the job's own")
    region: str = Field(default="", description="where the provider renders; tenants allow by region")
    bucket: str = Field(default="", description="bedrock: s3://BUCKET/PREFIX that receives finished clips")
    kms_key: str = Field(default="", description="bedrock: ARN of the key that encrypts what is received")
    endpoint: str = Field(default="", description="bedrock: another address for both Bedrock APIs")
    bucket_endpoint: str = Field(default="", description="bedrock: another address for S3")
    sizes: str = Field(default="", description="http: WxH,WxH that it renders, where it does not say")
    seconds: str = Field(default="", description="http: lengths that it renders, where it does not say")
    usd_per_second: float = Field(default=0.0, ge=0, description="http: price of a second of video")
    expected_seconds: float = Field(
        default=120.0, gt=0, description="from start to finished clip, where the provider does not say"
    )
    max_jobs: int = Field(default=300, ge=1, le=10_000, description="provider jobs one process waits for")
    threads: int = Field(default=8, ge=1, le=64, description="calls to the provider at one time")
    timeout_seconds: float = Field(default=20.0, gt=0, le=600, description="patience with one call")
    poll_seconds: float = Field(
        default=5.0, gt=0, le=600, description="wait between two looks, where the provider does not say"
    )
    patience_seconds: float = Field(
        default=60.0, ge=0, le=3600, description="how long a start is tried before the job goes home"
    )
    limit_seconds: float = Field(
        default=3600.0, gt=0, description="a provider job that takes longer is given up"
    )


class RoutingSettings(Slice):
    """When a job leaves for a managed provider, and when that provider is left alone."""

    spill_after_seconds: float = Field(
        default=120.0, ge=0, le=86400, description="a job that has waited this long may leave for a provider"
    )
    spill_seconds: float = Field(
        default=2.0, gt=0, le=600, description="how often waiting jobs are looked at"
    )
    safety_factor: float = Field(
        default=1.2,
        ge=1,
        le=10,
        description="predicted seconds count this many times when a deadline is near",
    )
    silence_seconds: float = Field(
        default=30.0, ge=5, le=3600, description="GPU workers not heard of for this long are not waited for"
    )
    failures_to_open: int = Field(
        default=5, ge=1, le=10, description="bad answers among a provider's last ten that open its breaker"
    )
    slow_seconds: float = Field(
        default=15.0, gt=0, le=600, description="a provider's answer that takes longer counts as a bad one"
    )
    open_seconds: float = Field(
        default=5.0, gt=0, le=3600, description="rest before the first probe of a provider; doubles each time"
    )
    max_open_seconds: float = Field(
        default=300.0, gt=0, le=86400, description="the longest rest between two probes"
    )
    probe_seconds: float = Field(
        default=60.0, gt=0, le=3600, description="a probe without an answer for this long is given up"
    )
    retry_share: float = Field(
        default=0.1, ge=0, le=1, description="retries a provider gets for each first try"
    )


class PlannerSettings(Slice):
    """What `filmgate plan` assumes when nothing is asked."""

    region: str = Field(default="us-east-1", description="AWS region plans are priced in")
    catalog_file: str = Field(default="", description="TOML with your own GPUs, instances, prices and models")
    prices_file: str = Field(default="", description="CSV written by `filmgate plan prices --refresh`")


class Settings(Slice):
    """Every setting of the process; each part is handed its own slice."""

    data: Path = Field(default=Path("data"), description="folder of everything embedded: jobs, clips, keys")
    pipeline: PipelineSettings = PipelineSettings()
    queue: QueueSettings = QueueSettings()
    store: StoreSettings = StoreSettings()
    worker: WorkerSettings = WorkerSettings()
    api: ApiSettings = ApiSettings()
    admission: AdmissionSettings = AdmissionSettings()
    models: ModelSettings = ModelSettings()
    fallback: FallbackSettings = FallbackSettings()
    routing: RoutingSettings = RoutingSettings()
    planner: PlannerSettings = PlannerSettings()


@dataclass(frozen=True, slots=True)
class Origin:
    """An effective value and where it came from, as `filmgate config` prints it."""

    key: str
    value: object
    source: str
    description: str


def load_settings(environ: Mapping[str, str] | None = None, file: Path | None = None) -> Settings:
    """The effective settings; raises SettingsError with the key's name and what was expected."""
    settings, _ = read_settings(environ, file)
    return settings


def read_settings(
    environ: Mapping[str, str] | None = None, file: Path | None = None
) -> tuple[Settings, list[Origin]]:
    """The effective settings and the origin of every value."""
    environ = os.environ if environ is None else environ
    path = file or Path(environ.get(FILE_VARIABLE, DEFAULT_FILE))
    from_file = _read_file(path, is_required=file is not None or FILE_VARIABLE in environ)
    from_env = {_env_key(name): value for name, value in environ.items() if _is_ours(name)}
    sources = {key: str(path) for key in from_file} | {key: _env_name(key) for key in from_env}
    settings = _validate(from_file | from_env, sources)
    return settings, list(_origins(settings, sources))


def with_values(settings: Settings, given: Mapping[str, object]) -> Settings:
    """The settings with these dotted keys over them: what a command line says wins."""
    texts = {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
    effective = {origin.key: origin.value for origin in _origins(settings, {})}
    return _validate(effective | texts, {key: f"--{key.rpartition('.')[2]}" for key in effective})


def setting_keys() -> list[str]:
    """Every dotted key there is, for the docs and for near-miss messages."""
    return [origin.key for origin in _origins(Settings(), {})]


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX) and name != FILE_VARIABLE and not name.startswith("FILMGATE_TEST_")


def _env_key(name: str) -> str:
    return name.removeprefix(PREFIX).lower().replace("__", ".")


def _env_name(key: str) -> str:
    return PREFIX + key.upper().replace(".", "__")


def _read_file(path: Path, *, is_required: bool) -> dict[str, object]:
    try:
        return dict(_flatten(tomllib.loads(path.read_text())))
    except FileNotFoundError as exc:
        if is_required:
            raise SettingsError(f"settings file {path} does not exist", option=FILE_VARIABLE) from exc
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise SettingsError(f"settings file {path} cannot be read: {exc}", option=str(path)) from exc


def _flatten(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _validate(values: Mapping[str, object], sources: Mapping[str, str]) -> Settings:
    tree: dict[str, object] = {}
    for key, value in values.items():
        node = tree
        *parents, leaf = key.split(".")
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                raise SettingsError(f"{sources[key]}: {parent} is a value, not a section", option=key)
            node = child
        node[leaf] = value
    try:
        return Settings.model_validate(tree)
    except ValidationError as exc:
        raise _explain(exc, sources) from exc


def _explain(exc: ValidationError, sources: Mapping[str, str]) -> SettingsError:
    first = exc.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    source = sources.get(key, "settings")
    if first["type"] == "extra_forbidden":
        from difflib import get_close_matches

        near = get_close_matches(key, setting_keys(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "run `filmgate config` for the list"
        return SettingsError(f"{source}: unknown setting {key}; {hint}", option=key)
    return SettingsError(f"{source}: {key}: {first['msg']}, got {first['input']!r}", option=key)


def _origins(node: BaseModel, sources: Mapping[str, str], prefix: str = "") -> Iterator[Origin]:
    for name, field in type(node).model_fields.items():
        key, value = prefix + name, getattr(node, name)
        if isinstance(value, BaseModel):
            yield from _origins(value, sources, f"{key}.")
        else:
            yield Origin(key, value, sources.get(key, "default"), field.description or "")
