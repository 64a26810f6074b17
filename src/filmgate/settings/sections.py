"""The settings of each part: defaults, limits and descriptions."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """The settings of one part. Frozen; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class QueueSettings(Section):
    """Leases, retries, and the database that holds the jobs."""

    url: str = Field(
        default="", description="sqlite:///FILE or postgresql://...; if empty, filmgate.db in the data folder"
    )
    lease_seconds: float = Field(
        default=30.0,
        ge=1,
        le=3600,
        description="seconds without a heartbeat before the job is leased to another worker",
    )
    max_attempts: int = Field(default=3, ge=1, le=20, description="attempts before a job fails")
    backoff_seconds: float = Field(
        default=2.0, ge=0, le=600, description="delay before the second attempt; doubles with every attempt"
    )
    retry_window_seconds: float = Field(
        default=900.0,
        ge=0,
        le=86400,
        description="how long an SDK's retry of a request counts as the same job",
    )
    retention_seconds: float = Field(
        default=7 * 86400.0, ge=60, description="age at which a finished job and its clip are deleted"
    )
    key_wait_seconds: float = Field(
        default=3600.0,
        ge=0,
        description="age at which a job fails if its tenant's key is rejected; a younger job waits",
    )
    timeout_seconds: float = Field(
        default=5.0, ge=0.1, le=60, description="how long to wait for a database lock or connection"
    )
    waker: str = Field(
        default="poll",
        description="how idle workers are woken for new jobs: poll, notify (PostgreSQL), sqs://NAME.fifo, "
        "or the https URL of an SQS FIFO queue",
    )
    region: str = Field(default="", description="AWS region of the SQS queue, if not from the environment")
    endpoint: str = Field(default="", description="endpoint URL of SQS; if empty, the AWS endpoint")
    poll_seconds: float = Field(
        default=0.5,
        gt=0,
        le=60,
        description="poll: interval at which an idle worker checks the database; SQLite: also after a commit",
    )
    wait_seconds: float = Field(
        default=5.0, ge=0, le=20, description="notify, sqs: how long an idle worker waits for a message"
    )
    sweep_seconds: float = Field(
        default=15.0, ge=0, le=600, description="sqs: interval at which lost messages are sent again"
    )


class StoreSettings(Section):
    """The object store of clips, uploads and checkpoints, and the keys that encrypt them."""

    url: str = Field(
        default="", description="file:///DIR or s3://BUCKET/PREFIX; if empty, objects in the data folder"
    )
    keyring: str = Field(
        default="", description="file:///DIR of tenant keys, or kms://; if empty, keys in the data folder"
    )
    kms_key: str = Field(
        default="alias/filmgate-{tenant}",
        description="a tenant's KMS key, for s3:// and kms://; if empty, the bucket's default key",
    )
    region: str = Field(default="", description="AWS region of bucket and keys; if empty, AWS_DEFAULT_REGION")
    endpoint: str = Field(
        default="", description="endpoint URL of S3, such as http://minio:9000; if empty, the AWS endpoint"
    )
    kms_endpoint: str = Field(default="", description="endpoint URL of KMS; if empty, the AWS endpoint")
    tenant_role: str = Field(
        default="",
        description="ARN of a role to assume for each tenant, with the session tag `tenant`, for objects and "
        "keys; if empty, the process's own role",
    )
    sts_endpoint: str = Field(default="", description="endpoint URL of STS; if empty, the AWS endpoint")
    link_seconds: float = Field(default=900.0, ge=1, le=604800, description="how long a signed link is valid")
    min_free_bytes: int = Field(
        default=1 << 30, ge=0, description="free disk space below which no new work is accepted"
    )


class WorkerSettings(Section):
    """A worker process."""

    tenants: str = Field(
        default="",
        description="tenants whose jobs it leases, comma-separated; if empty, all tenants except dedicated "
        "ones",
    )
    heartbeat_seconds: float = Field(
        default=5.0, gt=0, le=600, description="interval between heartbeats, which renew the lease"
    )
    progress_seconds: float = Field(
        default=0.5, gt=0, le=60, description="minimum interval between progress reports"
    )
    drain_seconds: float = Field(
        default=25.0,
        ge=0,
        le=86400,
        description="after SIGTERM: time to finish the running job before it is handed back",
    )
    store_retry_seconds: float = Field(
        default=600.0, ge=0, le=86400, description="how long to retry storing a finished clip"
    )
    canary_seconds: float = Field(
        default=3600.0,
        ge=0,
        le=604800,
        description="longest time between two canary clips; an idle worker renders one after half of it; "
        "0 means only at the start",
    )
    gpu_watch_seconds: float = Field(
        default=1.0, gt=0, le=60, description="interval at which NVML is polled for GPU errors"
    )
    interruption: Literal["off", "imds"] = Field(
        default="off",
        description="imds: read spot notices from the EC2 metadata service, and drain when there is one",
    )
    metadata_endpoint: str = Field(
        default="http://169.254.169.254", description="imds: endpoint URL of the metadata service"
    )


class ApiSettings(Section):
    """The HTTP API."""

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on; 0 takes any free port")
    open: bool = Field(
        default=False, description="accept requests without an API key; only on a loopback address"
    )
    max_body_bytes: int = Field(default=32 << 20, ge=1024, description="largest multipart body")
    content: Literal["proxy", "redirect"] = Field(
        default="proxy", description="how clips are served: by the API, or by a redirect to a signed link"
    )
    watch_seconds: float = Field(
        default=0.25,
        gt=0,
        le=10,
        description="interval at which watched jobs are checked for changes; SQLite: also after a commit",
    )
    cors_origins: str = Field(
        default="",
        description="comma-separated origins whose pages may call the API from a browser; * means any origin",
    )
    usd_per_gpu_hour: float = Field(
        default=0.0, ge=0, description="price of a GPU-hour, for the cost of a job; 0 means unknown"
    )
    tls_certificate: str = Field(default="", description="PEM file of the server's certificate chain")
    tls_key: str = Field(default="", description="PEM file of the certificate's private key")
    tls_client_ca: str = Field(
        default="", description="PEM file of the CA whose client certificates identify tenants"
    )


class AdmissionSettings(Section):
    """Admission of requests."""

    default_model: str = Field(
        default="flipbook",
        description="model of requests that do not name one; if no worker serves it, a model that is served",
    )
    default_quality: Literal["full", "balanced", "draft"] = Field(
        default="full",
        description="quality level of requests that do not name one; models without this level render full",
    )
    model_aliases: str = Field(
        default="sora-2,sora-2-pro",
        description="comma-separated names that mean the default model; NAME=MODEL means another model",
    )
    scaled_sizes: str = Field(
        default="1280x720,720x1280,1792x1024,1024x1792",
        description="comma-separated sizes that every model accepts: rendered at its nearest size and scaled",
    )
    scale_from_zero: str = Field(
        default="",
        description="comma-separated models whose jobs are accepted while no worker serves them; * means all",
    )
    models_file: str = Field(default="", description="TOML file of additional model cards")
    rules_file: str = Field(
        default="",
        description="TOML file of screening rules, or folder with one file per language; if empty, the rules "
        "in the package",
    )
    slo_seconds: float = Field(
        default=90.0, gt=0, description="deadline of a job, in seconds from acceptance"
    )
    promise_seconds: float = Field(
        default=900.0, gt=0, description="requests that would take longer than this are rejected with 429"
    )
    prompt_max_chars: int = Field(default=4000, ge=1, le=100_000, description="maximum length of a prompt")
    image_max_bytes: int = Field(default=16 << 20, ge=1024, description="maximum size of a reference image")
    image_max_pixels: int = Field(
        default=25_000_000, ge=1024, description="maximum pixels of a reference image"
    )
    image_seconds: float = Field(default=10.0, gt=0, le=60, description="time limit for decoding an image")
    fetch: bool = Field(default=True, description="allow reference images from public URLs")
    fetch_hosts: str = Field(
        default="", description="comma-separated hosts to fetch from; if empty, any public host"
    )
    fetch_seconds: float = Field(default=10.0, gt=0, le=60, description="time limit for fetching a URL")


class ClassifierSettings(Section):
    """A classifier of prompts outside this process, called after the rules."""

    kind: Literal["disabled", "http", "comprehend"] = Field(
        default="disabled",
        description="http: any API in the form of OpenAI's moderations; comprehend: Amazon Comprehend",
    )
    url: str = Field(default="", description="http: URL of the API, such as https://HOST/v1/moderations")
    key_file: str = Field(default="", description="http: file that contains the API key")
    model: str = Field(default="", description="http: model to request; if empty, the API's default")
    region: str = Field(default="", description="comprehend: AWS region, if not from the environment")
    endpoint: str = Field(
        default="", description="comprehend: endpoint URL of Comprehend; if empty, the AWS endpoint"
    )
    timeout_seconds: float = Field(
        default=0.2, gt=0, le=30, description="timeout of one classification; then fail_closed decides"
    )
    threshold: float = Field(
        default=0.5, gt=0, le=1, description="score from which a text belongs to a category"
    )
    fail_closed: str = Field(
        default="minors",
        description="comma-separated categories that must be classified: without a result, the request is "
        "rejected with 503; for other categories it passes and is flagged",
    )


class ProviderSettings(Section):
    """The managed provider that renders jobs that your GPUs would finish too late."""

    kind: Literal["disabled", "http", "bedrock"] = Field(
        default="disabled", description="http: any OpenAI-compatible video API; bedrock: Amazon Bedrock"
    )
    url: str = Field(default="", description="http: base URL of the API, ending in /v1")
    api_key: str = Field(default="", description="http: API key; prefer key_file")
    key_file: str = Field(default="", description="http: file that contains the API key")
    model: str = Field(default="", description="model to request; with http, the job's own model if empty")
    region: str = Field(default="", description="region in which the provider renders")
    bucket: str = Field(default="", description="bedrock: s3://BUCKET/PREFIX that receives finished clips")
    kms_key: str = Field(default="", description="bedrock: ARN of the KMS key for the received clips")
    endpoint: str = Field(
        default="", description="bedrock: endpoint URL of Bedrock; if empty, the AWS endpoint"
    )
    bucket_endpoint: str = Field(
        default="", description="bedrock: endpoint URL of S3; if empty, the AWS endpoint"
    )
    sizes: str = Field(default="", description="http: sizes (WxH,WxH) if the API does not list them")
    seconds: str = Field(default="", description="http: clip lengths if the API does not list them")
    usd_per_second: float = Field(default=0.0, ge=0, description="http: price of a second of video")
    expected_seconds: float = Field(
        default=120.0, gt=0, description="time from start to finished clip if the provider does not state it"
    )
    max_jobs: int = Field(
        default=300, ge=1, le=10_000, description="provider jobs one process handles at a time"
    )
    threads: int = Field(default=8, ge=1, le=64, description="concurrent calls to the provider")
    timeout_seconds: float = Field(default=20.0, gt=0, le=600, description="timeout of one call")
    poll_seconds: float = Field(
        default=5.0, gt=0, le=600, description="polling interval if the provider does not state it"
    )
    start_retry_seconds: float = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="how long to retry a start before the job returns to your GPUs",
    )
    limit_seconds: float = Field(
        default=3600.0, gt=0, description="maximum duration of a provider job before it is cancelled"
    )


class RoutingSettings(Section):
    """When jobs go to a managed provider, and its circuit breaker."""

    spill_after_seconds: float = Field(
        default=120.0, ge=0, le=86400, description="waiting time after which a job may go to the provider"
    )
    spill_seconds: float = Field(
        default=2.0, gt=0, le=600, description="interval at which queued jobs are checked"
    )
    safety_factor: float = Field(
        default=1.2,
        ge=1,
        le=10,
        description="factor on predicted seconds when they are compared with a deadline",
    )
    failures_to_open: int = Field(
        default=5, ge=1, le=10, description="failures among the last ten calls that open the breaker"
    )
    slow_seconds: float = Field(
        default=15.0, gt=0, le=600, description="response time above which a call counts as a failure"
    )
    open_seconds: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="delay before the first probe; doubles with every failed probe",
    )
    max_open_seconds: float = Field(
        default=300.0, gt=0, le=86400, description="maximum delay between two probes"
    )
    probe_seconds: float = Field(
        default=60.0, gt=0, le=3600, description="time after which an unanswered probe counts as failed"
    )
    retry_share: float = Field(default=0.1, ge=0, le=1, description="retries allowed per first call")


class ModelSettings(Section):
    """Model weights in S3 and their cache on this machine."""

    cache: str = Field(
        default="",
        description="folder of pulled models, for example on NVMe or in /dev/shm; if empty, in the data "
        "folder",
    )
    folders: str = Field(
        default="", description="comma-separated folders whose model folders `filmgate models` lists"
    )
    cache_bytes: int = Field(
        default=0, ge=0, description="maximum size of the cache; 0 means that only the disk limits it"
    )
    url: str = Field(
        default="",
        description="bucket and prefix of the models, s3://BUCKET/PREFIX, for the doctor and `filmgate aws`",
    )
    kms_key: str = Field(
        default="",
        description="KMS key with which a push encrypts, such as alias/filmgate-models; if empty, the "
        "bucket's",
    )
    region: str = Field(default="", description="AWS region of the model bucket, if not from the environment")
    endpoint: str = Field(default="", description="endpoint URL of S3; if empty, the AWS endpoint")
    connections: int = Field(default=16, ge=1, le=256, description="parallel range requests of a pull")
    range_bytes: int = Field(default=16 << 20, ge=1 << 16, description="bytes per range request")
    adapters_file: str = Field(default="", description="TOML file of LoRA adapters")
    adapter_cache_bytes: int = Field(
        default=4 << 30, ge=0, description="host memory for LoRA adapters that a worker has read"
    )


class ClientSettings(Section):
    """The server that `filmgate jobs` talks to."""

    url: str = Field(default="http://127.0.0.1:8000", description="address of the server")
    key_file: str = Field(
        default="", description="file that contains the API key; if empty, local.key in the data folder"
    )


class PlannerSettings(Section):
    """Defaults of `filmgate plan`."""

    region: str = Field(default="us-east-1", description="AWS region for prices")
    catalog_file: str = Field(
        default="", description="TOML file with additional GPUs, instances, prices and models"
    )
    prices_file: str = Field(default="", description="CSV file written by `filmgate plan prices --refresh`")
