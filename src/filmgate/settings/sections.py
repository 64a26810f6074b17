"""The settings of each part, with their defaults and limits."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


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
        description="exact: the VAE's own layers; fast: kernels of our own; auto: fast where proven",
    )
    codec: Literal["h264", "hevc", "av1"] = Field(
        default="h264", description="video codec of the finished file"
    )
    encoder: Literal["auto", "software", "nvenc"] = Field(
        default="auto", description="auto: NVENC where a real frame comes out of it, else software"
    )
    preset: str = Field(default="veryfast", description="encoder preset of the software encoders")
    encoder_threads: int = Field(
        default=8,
        ge=1,
        le=128,
        description="threads of the software encoders, one a core and at most this many",
    )
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
        default="",
        description="sqs://NAME.fifo or a FIFO queue's https URL wakes workers; empty: they ask the database",
    )
    region: str = Field(default="", description="AWS region of the delivery queue; empty: the environment's")
    endpoint: str = Field(default="", description="address of SQS, if it is not AWS's own")
    wait_seconds: float = Field(
        default=5.0, ge=0, le=20, description="how long a worker waits for a message before it looks around"
    )
    sweep_seconds: float = Field(
        default=15.0, ge=0, le=600, description="how often jobs without a message are looked for"
    )


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


class ModelSettings(Slice):
    """Model weights in S3, and the cache of them on this node."""

    cache: str = Field(
        default="",
        description="folder of pulled models: a local NVMe, or /dev/shm; empty: in the data folder",
    )
    cache_bytes: int = Field(
        default=0, ge=0, description="most bytes the cache may take; 0: as much as the disk has"
    )
    region: str = Field(default="", description="AWS region of the model bucket; empty: the environment's")
    endpoint: str = Field(default="", description="address of S3, if it is not AWS's own")
    connections: int = Field(default=16, ge=1, le=256, description="ranges that are pulled at once")
    range_bytes: int = Field(default=16 << 20, ge=1 << 16, description="how much one request pulls")


class PlannerSettings(Slice):
    """What `filmgate plan` assumes when nothing is asked."""

    region: str = Field(default="us-east-1", description="AWS region plans are priced in")
    catalog_file: str = Field(default="", description="TOML with your own GPUs, instances, prices and models")
    prices_file: str = Field(default="", description="CSV written by `filmgate plan prices --refresh`")
