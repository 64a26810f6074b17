"""Which addresses the network policies let pods reach."""

import pytest

from deploy.tests.charts import environment, render_values

ALWAYS = {53, 443, 5432}


@pytest.mark.parametrize(
    ("setting", "port"),
    [
        ("settings.traces.endpoint=http://collector:4318", 4318),
        ("settings.traces.endpoint=http://collector", 80),
        ("settings.traces.endpoint=https://collector", None),
        ("settings.store.endpoint=http://minio:9000", 9000),
        ("settings.store.endpoint=https://[fd00::1]:9443/path", 9443),
        ("settings.provider.url=https://films.example.com:8443/v1", 8443),
        ("settings.classifier.url=http://moderation/v1/moderations", 80),
        ("workers.wan.settings.models.endpoint=http://minio:9001", 9001),
        ("workerDefaults.settings.models.endpoint=http://minio:9002", 9002),
        ("networkPolicy.extraPorts={8086}", 8086),
        ("settings.slo.runbooks=http://wiki:8090", None),
        ("settings.queue.waker=notify", None),
    ],
)
def test_pods_reach_the_ports_of_the_urls_in_their_settings_and_no_others(setting, port):
    policy = render_values("air-gapped", "--set", setting).one("NetworkPolicy", "-default")
    ports = {each["port"] for rule in policy["spec"]["egress"] for each in rule.get("ports", [])}
    assert ports == ALWAYS | ({port} if port else set())


def metadata_policy(*options):
    """The workers that the network lets reach the metadata service."""
    policies = [
        one for one in render_values(*options).of("NetworkPolicy") if "169.254.169.254" in str(one["spec"])
    ]
    return [name for one in policies for name in one["spec"]["podSelector"]["matchExpressions"][0]["values"]]


def test_only_workers_that_ask_the_metadata_service_can_reach_it():
    asks, relies = render_values("spot-imds"), render_values("spot")
    hops = [
        r.one("EC2NodeClass")["spec"]["metadataOptions"]["httpPutResponseHopLimit"] for r in (asks, relies)
    ]
    assert hops == [2, 1]
    worker = asks.pods["films-worker-wan"]["spec"]["containers"][0]
    assert environment(worker)["FILMGATE_WORKER__INTERRUPTION"] == "imds"
    assert (metadata_policy("spot-imds"), metadata_policy("spot")) == (["worker-wan"], [])
    assert metadata_policy("spot", "--set", "karpenter.spotNotice=imds") == ["worker-wan-spot"]
    assert metadata_policy("no-karpenter", "--set", "settings.worker.interruption=imds") == ["worker-wan"]


@pytest.mark.parametrize(("name", "is_open"), [("sqs", True), ("one-tenant", False)])
def test_pods_reach_the_agent_of_pod_identity_where_it_gives_them_credentials(name, is_open):
    policy = render_values(name).one("NetworkPolicy", "-default")["spec"]
    addresses = {
        peer["ipBlock"]["cidr"]
        for rule in policy["egress"]
        for peer in rule.get("to", [])
        if "ipBlock" in peer
    }
    agent = {"169.254.170.23/32", "fd00:ec2::23/128"}
    assert addresses & agent == (agent if is_open else set())
