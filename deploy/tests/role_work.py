"""The work of each role on AWS, done by Filmgate's own code."""

from contextlib import closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace

import boto3
import pytest

from deploy.tests.guarded_aws import (
    AUDIT,
    AUDIT_ALIAS,
    FILMS,
    PROVIDER_REGION,
    QUEUE,
    REGION,
    STAGING,
    STAGING_KEY,
    WEIGHTS,
)
from filmgate.admission.screening.comprehend import ComprehendClassifier
from filmgate.audit.installation import open_checkpoints, verify_installation
from filmgate.aws.deployment import Deployment
from filmgate.aws.resource_policies import lifecycle
from filmgate.aws.s3_location import S3Location
from filmgate.aws.tenant_key import KeyTemplate
from filmgate.database import open_database
from filmgate.database.migration import migrate
from filmgate.errors import ClassifierUnavailable, ModelError
from filmgate.jobs import Failure, JobState, Reason, Route, TenantId, new_job_id
from filmgate.maintenance.offboarding import opened_offboarding
from filmgate.maintenance.retention import Retention
from filmgate.models.weights import open_cache
from filmgate.models.weights.doctor import check_models_bucket
from filmgate.models.weights.location import parse_location
from filmgate.models.weights.remote import open_remote
from filmgate.providers import open_provider
from filmgate.providers.doctor import examine_provider
from filmgate.providers.invocations import SqlInvocations
from filmgate.scheduling import open_queue, open_reader
from filmgate.scheduling.base import AttemptFailure
from filmgate.scheduling.wakers.sqs_doctor import examine_sqs
from filmgate.settings import (
    AuditSettings,
    ClassifierSettings,
    ModelSettings,
    QueueSettings,
    Settings,
    StoreSettings,
)
from filmgate.store import open_store
from filmgate.store.base import ObjectName
from filmgate.store.keys import open_keys
from filmgate.store.keys.doctor import check_kms
from filmgate.store.s3.doctor import check_bucket
from filmgate.store.s3.multipart import PART_BYTES
from filmgate.telemetry.findings import Verdict
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from filmgate.worker_process import opened_services
from tests.managed_site import ANYTHING, QUICK, WHY, ManagedSite, bedrock_settings
from tests.pattern_runner import MODEL as PATTERN
from tests.stores import parts_of
from tests.tickets import RESULT, make_offer, make_ticket
from tests.waiting import wait_until

ACME = TenantId("acme")
LOCATION = f"s3://{WEIGHTS}/models/tiny/v1/"
CRASH = AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "out of GPU memory"))
DRAIN = AttemptFailure(Failure(Reason.WORKER_LOST, "the worker is shutting down"), uses_attempt=False)


class Site:
    """The settings of an installation on the guarded account."""

    def __init__(self, url, folder, bedrock):
        self.url, self.folder = url, folder
        self.models = ModelSettings(
            url=f"s3://{WEIGHTS}/models", region=REGION, endpoint=url, cache=str(folder / "cache"),
            kms_key="alias/filmgate-models", range_bytes=5 << 20,
        )  # fmt: skip
        quick = {"lease_seconds": 5, "backoff_seconds": 0, "poll_seconds": 0.02, "wait_seconds": 0}
        self.settings = Settings(
            data=folder,
            store=StoreSettings(
                url=f"s3://{FILMS}/clips", region=REGION, endpoint=url, kms_endpoint=url, keyring="kms://"
            ),
            queue=QueueSettings(waker=f"sqs://{QUEUE}", region=REGION, endpoint=url, **quick),
            provider=bedrock_settings(bedrock, url, STAGING, region=PROVIDER_REGION, kms_key=STAGING_KEY),
            worker=QUICK,
            models=self.models,
            audit=AuditSettings(
                signing_key=f"kms://{AUDIT_ALIAS}", anchor=f"s3://{AUDIT}/heads", region=REGION,
                endpoint=url, kms_endpoint=url,
            ),
        )  # fmt: skip

    @contextmanager
    def services(self):
        """What every process opens."""
        settings = self.settings
        keys = open_keys(settings.store, settings.data)
        with closing(open_database(settings.queue, settings.data)) as database:
            migrate(database)
            yield SimpleNamespace(
                database=database,
                store=open_store(settings.store, settings.data, keys),
                queue=open_queue(database, keys, settings.queue),
                reader=open_reader(database, keys),
                tenants=TenantRegistry(database),
            )

    def check(self):
        """What the doctor reports about S3, KMS and SQS as failed."""
        settings = self.settings
        found = [
            *check_bucket(settings.store, ACME),
            *check_kms(settings.store, ACME),
            *examine_sqs(settings.queue, "flipbook"),
        ]
        return [finding.message for finding in found if finding.verdict is Verdict.FAIL]


def work_as_api(site):
    """Accepts jobs with uploads, classifies prompts, serves downloads, deletes what has expired, signs."""
    with site.services() as services:
        services.tenants.add(Tenant(ACME, managed=ANYTHING))
        for route, model in ((Route.GPU, "flipbook"), (Route.MANAGED, "flipbook"), (Route.MANAGED, PATTERN)):
            ticket = make_ticket(ACME, model=model)
            services.queue.enqueue(replace(ticket, route=route, routing=WHY))
        source = ObjectName(ACME, new_job_id(), "source")
        services.store.put(source, [b"x" * (PART_BYTES + 1)])
        assert b"".join(services.store.read(source, 0, 2)) == b"xx"
        assert services.store.stat(source).size_bytes == PART_BYTES + 1
        assert services.reader.page(ACME)
        services.queue.sweep()
        leave_upload(site.url, f"clips/acme/{source.job_id}/source")
        services.store.sweep(0)
        Retention(services.queue, services.reader, services.store, services.tenants).delete_orphans()
        services.store.delete(ACME, source.job_id)
        sign_and_verify_audit(site, services.database)
    settings = ClassifierSettings(kind="comprehend", region=REGION, endpoint="http://127.0.0.1:9")
    with pytest.raises(ClassifierUnavailable):
        ComprehendClassifier.open(settings).classify(["a red ball"])
    assert site.check() == []


def sign_and_verify_audit(site, database):
    """Signs and anchors the audit log, and verifies it as `filmgate audit verify` does."""
    signed = open_checkpoints(database, site.settings).run()
    result = verify_installation(database, site.settings)
    assert signed > 0
    assert (result.is_intact, result.unsigned, result.anchored) == (True, 0, signed)


def work_as_worker(site):
    """Pulls its model, leases the job three times, stores the clip and the checkpoint, and deletes parts."""
    cache = open_cache(site.models, site.folder)
    cache.acquire(parse_location(LOCATION)).lock.close()
    with pytest.raises(ModelError, match=r"has no|does not exist"):
        cache.acquire(parse_location(LOCATION.replace("tiny", "none")))
    attempt_job(site, make_offer())


def attempt_job(site, offer):
    """Leases a job three times: it crashes, it is handed back, and it completes after a broken upload."""
    with site.services() as services:
        queue, store = services.queue, services.store
        queue.fail_attempt(queue.lease(offer), CRASH)
        queue.fail_attempt(queue.lease(offer), DRAIN)
        lease = queue.lease(offer)
        clip, latents = (ObjectName(ACME, lease.job.id, part) for part in ("clip-3.mp4", "latents"))
        with pytest.raises(ZeroDivisionError):
            store.put(clip, (b"x" * (PART_BYTES // (3 - part)) for part in range(4)))
        leave_upload(site.url, f"clips/acme/{lease.job.id}/clip-2.mp4")
        store.put(clip, [b"x" * (PART_BYTES + 10)])
        store.put(latents, [b"checkpoint"])
        assert b"".join(store.read(latents)) == b"checkpoint"
        assert len(parts_of(store, ACME, lease.job.id)) == 2
        assert lease.job.id in dict(store.jobs(ACME))
        store.delete(ACME, lease.job.id, "latents")
        queue.complete(lease, RESULT)
        queue.sweep()


def leave_upload(url, key):
    """An upload without an end, as a killed worker leaves one."""
    s3 = boto3.Session().client("s3", endpoint_url=url, region_name=REGION)
    s3.create_multipart_upload(Bucket=FILMS, Key=key)


def work_as_managed_worker(site):
    """Has the provider render a job, moves the clip from the staging bucket, and deletes it there."""
    attempt_job(site, make_offer(route=Route.MANAGED))
    failed = [one.message for one in examine_provider(site.settings.provider) if one.verdict is Verdict.FAIL]
    assert failed == []
    with opened_services(site.settings) as services:
        reader = open_reader(services.database, open_keys(site.settings.store, site.folder))
        managed = ManagedSite(
            site.settings, services, reader, SqlInvocations(services.database),
            open_provider(site.settings.provider),
        )  # fmt: skip
        (job,) = [job for job in reader.page(ACME).jobs if job.state is JobState.QUEUED]
        with managed.worker():
            wait_until(lambda: reader.find(ACME, job.id).state is not JobState.QUEUED)
            wait_until(lambda: reader.find(ACME, job.id).state is not JobState.RUNNING)
        assert reader.find(ACME, job.id).state is JobState.COMPLETED


def push_model(site):
    """An operator pushes a model, one file of it in several parts."""
    folder = site.folder / "model"
    folder.mkdir()
    (folder / "model_index.json").write_text("{}")
    (folder / "weights.safetensors").write_bytes(b"w" * (6 << 20))
    open_remote(parse_location(LOCATION), site.models).push(folder)
    assert [finding.verdict for finding in check_models_bucket(site.models)] == [Verdict.OK] * 2
    site_without_key = site.models.model_copy(update={"kms_key": ""})
    assert {finding.subject for finding in check_models_bucket(site_without_key)}


def set_up_tenant(site):
    """The commands of docs/aws.md that an operator runs for the bucket and for a tenant's key."""
    s3 = boto3.Session().client("s3", endpoint_url=site.url, region_name=REGION)
    kms = boto3.Session().client("kms", endpoint_url=site.url, region_name=REGION)
    deployment = Deployment(
        S3Location(FILMS, "clips/"), "123456789012", REGION, KeyTemplate("alias/filmgate-{tenant}")
    )
    s3.put_bucket_versioning(Bucket=FILMS, VersioningConfiguration={"Status": "Enabled"})
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}
    s3.put_bucket_encryption(Bucket=FILMS, ServerSideEncryptionConfiguration={"Rules": [rule]})
    s3.put_bucket_lifecycle_configuration(Bucket=FILMS, LifecycleConfiguration=lifecycle(deployment))
    key = kms.create_key()["KeyMetadata"]["KeyId"]
    kms.create_alias(AliasName="alias/filmgate-acme", TargetKeyId=key)
    kms.enable_key_rotation(KeyId=key)


def delete_tenant(site):
    """An operator checks the installation and deletes a tenant with its objects and its key."""
    found = {one.subject: one.verdict for one in check_bucket(site.settings.store, ACME)}
    assert {found[f"S3 {name}"] for name in ("versions", "encryption", "lifecycle")} == {Verdict.OK}
    with opened_offboarding(site.settings) as offboarding:
        assert offboarding.delete(ACME).objects > 0
