"""The chart's defaults: replicas, spread, tags, migration, and how long nodes live."""

import re

from deploy.tests.charts import CHART, ROOT, containers, render_values, run_helm
from filmgate.catalog.loader import load_catalog


def test_the_api_has_two_replicas_in_two_zones_and_a_rollout_never_has_fewer():
    spec = render_values("one-tenant").one("Deployment", "-api")["spec"]
    assert (spec["replicas"], spec["strategy"]["rollingUpdate"]["maxUnavailable"]) == (2, 0)
    pod = spec["template"]
    spread = {one["topologyKey"]: one for one in pod["spec"]["topologySpreadConstraints"]}
    assert set(spread) == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    for one in spread.values():
        assert one["maxSkew"] == 1
        assert one["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_default_tags_are_those_that_the_docs_build():
    built = set(re.findall(r"-t (filmgate-\S+:\S+) \.", (ROOT / "docs/deploy.md").read_text()))
    version = re.search(r'^appVersion: "?([\d.]+)', (CHART / "Chart.yaml").read_text(), re.MULTILINE)[1]
    assert built == {f"filmgate-server:{version}-py313", f"filmgate-worker:{version}-cuda13.0-py313"}
    pods = render_values("one-tenant").pods.values()
    assert {container["image"] for pod in pods for container in containers(pod)} == built


def test_the_database_is_migrated_before_new_pods_start():
    job = render_values("one-tenant").one("Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    (container,) = containers(job["spec"]["template"])
    assert container["args"] == ["deploy", "migrate"]


def test_nodes_expire_one_at_a_time_and_leave_pods_their_grace_period():
    rendered = render_values("one-tenant")
    pool = rendered.one("NodePool")["spec"]
    assert pool["disruption"]["budgets"] == [{"nodes": "1"}]
    assert pool["template"]["spec"]["expireAfter"] == "720h"
    assert pool["template"]["spec"]["terminationGracePeriod"] == "1800s"
    assert rendered.pods["films-worker-wan"]["spec"]["terminationGracePeriodSeconds"] < 1800
    rendered = render_values("one-tenant", "--set", "workers.wan.drainSeconds=7200")
    assert rendered.pods["films-worker-wan"]["spec"]["terminationGracePeriodSeconds"] == 7260
    assert rendered.one("NodePool")["spec"]["template"]["spec"]["terminationGracePeriod"] == "7260s"


def render_ami(gpu, version):
    chosen = f"karpenter.nodePools.g7e.gpu={gpu},karpenter.amiAlias=al2023@{version}"
    return run_helm("template", "--values", ROOT / "deploy/values/one-tenant.yaml", "--set", chosen)


def test_the_image_of_nodes_has_the_driver_that_the_catalog_asks_for():
    """The default suits every GPU of the catalog, and an older one is refused for the GPUs that need it."""
    floors = {gpu.karpenter_name: gpu.min_eks_ami for gpu in load_catalog().gpus.values() if gpu.min_eks_ami}
    assert floors
    (ami,) = render_values("one-tenant").one("EC2NodeClass")["spec"]["amiSelectorTerms"]
    assert re.fullmatch(r"al2023@v\d{8}", ami["alias"])
    assert ami["alias"] >= f"al2023@{max(floors.values())}"
    for gpu, floor in floors.items():
        older = f"v{int(floor[1:]) - 1}"
        assert render_ami(gpu, floor).returncode == 0
        assert f"{floor} on; {older} is older" in render_ami(gpu, older).stderr
        assert render_ami("l40s", older).returncode == 0


def test_one_pod_that_runs_everything_has_memory_for_its_worker():
    """The server and a worker with Flipbook were measured at 1.7 GiB; an API pod of its own has 1 GiB."""
    (container,) = containers(render_values("laptop").pods["films-api"])
    assert container["resources"] == {
        "requests": {"cpu": "1", "memory": "2Gi"},
        "limits": {"memory": "3Gi"},
    }


def test_a_tenant_in_the_defaults_of_workers_is_that_of_every_worker():
    """The ServiceAccount of its pods exists, and its queue alone scales them."""
    role = "arn:aws:iam::111122223333:role/filmgate-worker-acme"
    chosen = ("workerDefaults.tenant=acme", f"identity.tenantRoleArns.acme={role}", "keda.enabled=true")
    rendered = render_values("one-tenant", *(option for value in chosen for option in ("--set", value)))
    account = rendered.pods["films-worker-wan"]["spec"]["serviceAccountName"]
    assert account == "films-worker-acme"
    annotations = rendered.one("ServiceAccount", account)["metadata"]["annotations"]
    assert annotations["eks.amazonaws.com/role-arn"] == role
    (scaled,) = rendered.of("ScaledObject")
    assert 'tenant="acme"' in scaled["spec"]["triggers"][0]["metadata"]["query"]
