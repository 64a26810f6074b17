"""Values that contradict each other are refused, with the name of the value."""

import json

import pytest

from deploy.tests.charts import ROOT, run_helm

ROLE = "arn:aws:iam::123456789012:role/filmgate-worker-acme"
SQS = ["keda.awsRegion=eu-central-1", "keda.sqsQueueUrl=https://sqs.example.com/1/filmgate.fifo"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["workers.wan.gpus=2"], "gpus"),
        (["workers.wan.minReplica=2"], "minReplica"),
        (["workers.wan.minReplicas=9"], "minReplicas 9 is above maxReplicas 8"),
        (["workers.wan.nodePool=g9"], 'karpenter.nodePools has no "g9"'),
        (["workers.wan.modelName=wan"], "model is served as wan2.1-t2v-14b, but modelName is wan"),
        (["workers.wan.model=wan=/models/x"], "model is served as wan, but modelName is wan2.1-t2v-14b"),
        (["workers.wan.modelName="], "workers.wan.modelName is required with keda.enabled"),
        (["image.worker.tag=latest"], "tag"),
        (["karpenter.amiAlias=al2023@latest"], "amiAlias"),
        (["karpenter.nodeRole="], "karpenter.nodeRole is required"),
        (["settings.worker.drain_seconds=10"], "drain_seconds"),
        (["settings.quue.url=x"], "quue"),
        (["settings.store.url="], "several pods need one store"),
        (["settings.store.url=file:///data/clips"], "several pods need one store"),
        (["settings.store.keyring="], "several pods need one keyring"),
        (["settings.store.keyring=", "keyringClaim=keys"], "several pods need one keyring"),
        (["settings.store.keyring=file:///data/keys", "keyringClaim=keys"], "several pods need one keyring"),
        (["secretEnv=null"], "several pods need one database"),
        (["settings.queue.url=sqlite:////data/jobs.db"], "several pods need one database"),
        (["allInOne.enabled=true"], "allInOne runs its own worker"),
        (["allInOne.enabled=true", "workers=null", "managed.enabled=true"], "its own managed worker"),
        (["managed.enabled=true"], "managed.enabled needs settings.provider.kind"),
        (["identity.roleArns.worker="], "identity.roleArns.worker is required"),
        (["workers.wan.scaling.zeroOutsideSchedule=true"], "needs at least one entry in schedule"),
        (["workers.wan.scaling.replicasWhileActive=2"], "set minReplicas to 0"),
        (
            ["workers.wan.minReplicas=0", "workers.wan.scaling.replicasWhileActive=9"],
            "is above maxReplicas 8",
        ),
        (["workers.wan.cache.kind=claim"], "kind claim needs the name of a claim"),
        (["keda.scaleInSeconds=5"], "scaleInSeconds"),
        (["managementPort=8000"], "managementPort and api.port must differ"),
        (["managementPort=null"], "managementPort"),
        (["settings.management.port=9000"], "management"),
        (["workers.wan.tenant=acme"], "identity.tenantRoleArns.acme is required"),
        (["karpenter.nodePools.g7e.tenant=acme"], "the nodes of g7e are only for tenant acme"),
        (["dedicatedTenant=globex", "workers.wan.tenant=acme"], "the release serves only globex"),
        (
            ["workers.wan.tenant=acme", f"identity.tenantRoleArns.acme={ROLE}", "keda.trigger=sqs", *SQS],
            "a queue of SQS does not separate tenants",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_values_that_make_no_sense_are_refused_with_the_name_of_the_value(options, sentence):
    values = ROOT / "deploy/values/one-tenant.yaml"
    done = run_helm("template", "--values", values, *(part for o in options for part in ("--set", o)))
    assert done.returncode != 0
    assert sentence in done.stderr


WORKER = {"model": "s3://weights/models/wan/v1/", "modelName": "wan"}
POOL = {"gpu": "l40s", "gpusPerNode": ["1"], "capacity": ["spot"], "maxGpus": 1}


@pytest.mark.parametrize(
    ("entry", "values", "sentence"),
    [
        ("workers.wan-spot", WORKER, ""),
        ("workers.wan-spot-acme", WORKER, "KEDA allows 54 characters"),
        ("karpenter.nodePools.g7e-acme-spot", POOL, ""),
        ("karpenter.nodePools.g7e-acme-in-a-single-zone-spot", POOL, "labels allow 63 characters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_that_are_too_long_together_with_that_of_the_release_are_refused(entry, values, sentence):
    """KEDA and Karpenter copy them into labels, and would only log why there are no workers."""
    one_tenant = ROOT / "deploy/values/one-tenant.yaml"
    options = ("--values", one_tenant, "--set-json", f"{entry}={json.dumps(values)}")
    done = run_helm("template", *options, release="filmgate-production-eu-central-1-blue")
    assert (done.returncode != 0, sentence in done.stderr) == (bool(sentence), True), done.stderr
