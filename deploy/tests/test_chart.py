"""The chart renders valid manifests for every set of values, and refuses broken values and broken charts."""

import json
import os
import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from deploy.tests.charts import CHART, ROOT, VALUES, containers, environment, render, render_values, run_helm
from deploy.tests.custom_resources import CustomResources
from filmgate.aws.deployment import Role
from filmgate.aws.template_roles import Cluster
from filmgate.cli import app
from filmgate.settings import Settings, read_settings
from filmgate.slo.gpu_alerts import GpuMetrics
from filmgate.slo.rules import Release, rules_file
from tests.prometheus import promtool

VERSIONS = ("1.31.0", "1.37.0")
CRDS = Path(os.environ.get("FILMGATE_TEST_CRDS", ROOT.parent / "shared/crds"))
CUSTOM = ("karpenter", "keda.sh", "monitoring.coreos.com")
by_values = pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
needs_crds = pytest.mark.skipif(
    not CRDS.is_dir(),
    reason="set FILMGATE_TEST_CRDS to a folder with the CRDs of Karpenter, KEDA and the Prometheus operator "
    "(*.yaml) and KEDA's keda-scalers-schema.json",
)


def is_custom(manifest):
    return manifest["apiVersion"].startswith(CUSTOM)


@pytest.fixture(scope="session")
def custom_resources():
    return CustomResources(CRDS)


def faults(manifests, custom_resources):
    """Faults of all manifests against the schemas of Kubernetes and of the CRDs."""
    found = []
    for manifest in manifests:
        if is_custom(manifest):
            found += custom_resources.faults(manifest)
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except kubernetes_validate.ValidationError as exc:
                found.append(f"{manifest['kind']}: {exc.message}")
    return found


def test_there_are_at_least_twelve_sets_of_values_and_each_says_what_it_is_for():
    assert len(VALUES) >= 12
    assert [path.stem for path in VALUES if not path.read_text().startswith("# ")] == []


@by_values
def test_helm_lint_accepts_the_values(path):
    done = run_helm("lint", "--strict", "--values", path)
    assert done.returncode == 0, done.stdout + done.stderr


@by_values
def test_every_built_in_manifest_is_valid(path):
    manifests = [manifest for manifest in render("--values", path).manifests if not is_custom(manifest)]
    assert faults(manifests, None) == []
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
    assert len(set(names)) == len(names)


@needs_crds
@by_values
def test_every_custom_resource_is_valid(path, custom_resources):
    manifests = [manifest for manifest in render("--values", path).manifests if is_custom(manifest)]
    assert faults(manifests, custom_resources) == []


@by_values
def test_every_pod_passes_pod_security_restricted_and_has_a_read_only_root(path):
    for name, pod in render("--values", path).pods.items():
        security = pod["spec"]["securityContext"]
        assert (security["runAsNonRoot"], security["seccompProfile"]["type"]) == (True, "RuntimeDefault"), (
            name
        )
        allowed = {"emptyDir", "persistentVolumeClaim"}
        assert all(volume.keys() - {"name"} <= allowed for volume in pod["spec"]["volumes"]), name
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            assert mounts <= {volume["name"] for volume in pod["spec"]["volumes"]}


@by_values
def test_filmgate_accepts_the_environment_of_every_container(path):
    for pod in render("--values", path).pods.values():
        for container in containers(pod):
            settings, _ = read_settings(environment(container))
            assert str(settings.data) == "/data"


@by_values
def test_selectors_find_the_pods_and_disruption_budgets_leave_all_but_one(path):
    rendered = render("--values", path)
    labels = {name: pod["metadata"]["labels"] for name, pod in rendered.pods.items()}
    for budget in rendered.of("PodDisruptionBudget"):
        selector = budget["spec"]["selector"]["matchLabels"].items()
        assert [name for name, given in labels.items() if selector <= given.items()] == [
            budget["metadata"]["name"]
        ]
        assert budget["spec"]["maxUnavailable"] == 1
    selector = rendered.one("Service")["spec"]["selector"].items()
    assert [name for name, given in labels.items() if selector <= given.items()] == ["films-api"]


def test_a_worker_has_one_gpu_with_equal_request_and_limit_and_time_to_drain():
    pod = render_values("one-tenant").pods["films-worker-wan"]
    pull, worker = containers(pod)
    assert pull["args"] == ["models", "pull", "s3://weights/models/wan2.1-t2v-14b/v1/"]
    gpus = [worker["resources"][kind]["nvidia.com/gpu"] for kind in ("requests", "limits")]
    assert gpus == [1, 1]
    assert "nvidia.com/gpu" not in pull["resources"]["requests"]
    drain_seconds = float(environment(worker)["FILMGATE_WORKER__DRAIN_SECONDS"])
    assert pod["spec"]["terminationGracePeriodSeconds"] == drain_seconds + 60
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"][
        "tolerations"
    ]
    assert pod["metadata"]["annotations"] == {"karpenter.sh/do-not-disrupt": "true"}
    assert environment(pull)["FILMGATE_MODELS__CACHE"] == environment(worker)["FILMGATE_MODELS__CACHE"]


def test_the_node_pool_selects_the_true_gpu_and_its_label_is_what_workers_ask_for():
    rendered = render_values("one-tenant")
    pool = rendered.one("NodePool")["spec"]
    requirements = {r["key"]: r["values"] for r in pool["template"]["spec"]["requirements"]}
    assert requirements["karpenter.k8s.aws/instance-gpu-name"] == ["rtx-pro-server-6000"]
    selector = rendered.pods["films-worker-wan"]["spec"]["nodeSelector"]
    assert selector == pool["template"]["metadata"]["labels"]
    assert pool["disruption"]["consolidationPolicy"] == "WhenEmpty"
    assert rendered.one("EC2NodeClass")["spec"]["instanceStorePolicy"] == "RAID0"


def test_twenty_dedicated_tenants_share_no_node_role_or_name(tmp_path):
    """One release with dedicated workers for twenty tenants."""
    tenants = [f"tenant-{number}" for number in range(20)]
    base = yaml.safe_load((ROOT / "deploy/values/dedicated-workers.yaml").read_text())
    worker, pool = base["workers"].pop("wan-acme"), base["karpenter"]["nodePools"].pop("g7e-acme")
    for tenant in tenants:
        base["workers"][tenant] = worker | {"nodePool": tenant, "tenant": tenant}
        base["karpenter"]["nodePools"][tenant] = pool | {"tenant": tenant}
    role = "arn:aws:iam::123456789012:role/filmgate-worker-"
    base["identity"]["tenantRoleArns"] = {tenant: role + tenant for tenant in tenants}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(base))
    rendered = render("--values", values)
    assert faults([one for one in rendered.manifests if not is_custom(one)], None) == []
    metadata = [account["metadata"] for account in rendered.of("ServiceAccount")]
    accounts = {one["name"]: one["annotations"] for one in metadata}
    seen = set()
    for tenant in tenants:
        pod = rendered.pods[f"films-worker-{tenant}"]["spec"]
        toleration = {"key": "filmgate/tenant", "operator": "Equal", "value": tenant, "effect": "NoSchedule"}
        assert toleration in pod["tolerations"]
        seen.add(accounts[pod["serviceAccountName"]]["eks.amazonaws.com/role-arn"])
        seen.add(pod["nodeSelector"]["filmgate/node-pool"])
    assert len(seen) == 40


def test_the_account_of_a_tenant_with_the_longest_id_has_labels_that_kubernetes_accepts():
    tenant = "t" * 63
    role = "arn:aws:iam::123456789012:role/filmgate-worker-t"
    chosen = f"workers.wan.tenant={tenant},identity.tenantRoleArns.{tenant}={role}"
    rendered = render_values("no-keda", "--set", chosen, "--set", f"karpenter.nodePools.g7e.tenant={tenant}")
    labels = rendered.one("ServiceAccount", tenant)["metadata"]["labels"]
    assert max(map(len, labels.values())) <= 63


def test_the_accounts_of_a_long_release_are_those_that_the_roles_of_the_template_trust():
    cluster = Cluster("films", "", release="r" * 53)  # the longest that helm allows
    options = ("--values", ROOT / "deploy/values/dedicated-workers.yaml", "--set", "keda.enabled=false")
    rendered = render(*options, release=cluster.release)
    found = {account["metadata"]["name"] for account in rendered.of("ServiceAccount")}
    trusted = [cluster.service_account(role) for role in (Role.API, Role.WORKER)]
    assert found == {*trusted, cluster.service_account(Role.WORKER, "acme")}


def test_probes_and_metrics_are_on_the_management_port_of_every_process():
    rendered = render_values("two-zones")
    for name in ("films-api", "films-worker-wan", "films-managed"):
        container = rendered.pods[name]["spec"]["containers"][0]
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "management"}
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "management"}
        settings, _ = read_settings(environment(container))
        (port,) = [one["containerPort"] for one in container["ports"] if one["name"] == "management"]
        assert (settings.management.host, settings.management.port) == ("0.0.0.0", port)
    startup = rendered.pods["films-worker-wan"]["spec"]["containers"][0]["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 900
    monitor = rendered.one("PodMonitor")["spec"]
    assert monitor["podMetricsEndpoints"] == [{"port": "management", "path": "/metrics", "interval": "15s"}]
    selector = monitor["selector"]["matchLabels"].items()
    pods = {name: pod for name, pod in rendered.pods.items() if "migrate" not in name}
    assert all(selector <= pod["metadata"]["labels"].items() for pod in pods.values())


def test_dedicated_workers_of_a_tenant_have_a_role_nodes_and_scaling_of_their_own():
    rendered = render_values("dedicated-workers", "--set", "keda.enabled=true")
    shared, own = (rendered.pods[f"films-worker-{name}"] for name in ("wan", "wan-acme"))
    assert own["spec"]["containers"][0]["args"][-2:] == ["--tenant", "acme"]
    assert "--tenant" not in shared["spec"]["containers"][0]["args"]
    accounts = [pod["spec"]["serviceAccountName"] for pod in (shared, own)]
    assert accounts == ["films-worker", "films-worker-acme"]
    account = rendered.one("ServiceAccount", "films-worker-acme")["metadata"]["annotations"]
    assert account["eks.amazonaws.com/role-arn"].endswith("/filmgate-worker-acme")
    taint = {"key": "filmgate/tenant", "value": "acme", "effect": "NoSchedule"}
    assert taint in rendered.one("NodePool", "g7e-acme")["spec"]["template"]["spec"]["taints"]
    assert {**taint, "operator": "Equal"} in own["spec"]["tolerations"]
    assert not any(one["key"] == "filmgate/tenant" for one in shared["spec"]["tolerations"])
    queries = {
        scaled["spec"]["scaleTargetRef"]["name"]: scaled["spec"]["triggers"][0]["metadata"]["query"]
        for scaled in rendered.of("ScaledObject")
    }
    assert 'tenant="acme"' in queries["films-worker-wan-acme"]
    assert 'tenant!~"acme"' in queries["films-worker-wan"]


def test_rules_dashboards_and_counters_are_those_of_the_commands(tmp_path):
    """The chart cannot run `filmgate slo`: `make docs` copies what it prints."""
    files = CHART / "files"
    by_dcgm = ["--gpu-metrics", "dcgm", "--dcgm-label", "gpus=RELEASE"]
    for name, options in {"rules": [], "rules-dcgm": by_dcgm}.items():
        printed = CliRunner().invoke(app, ["slo", "rules", "--label", "release=RELEASE", *options]).stdout
        assert printed == (files / f"{name}.yaml").read_text()
    CliRunner().invoke(app, ["slo", "dashboards", "-o", str(tmp_path)], catch_exceptions=False)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in (files / "dashboards").iterdir()}
    counters = (files / "dcgm-counters.csv").read_text()
    assert counters == (ROOT / "deploy/dcgm-counters.csv").read_text()
    rendered = render_values("one-tenant")
    assert rendered.one("ConfigMap", "dcgm-counters")["data"]["metrics"] == counters
    boards = {
        name: text for made in rendered.of("ConfigMap", "-dashboard") for name, text in made["data"].items()
    }
    assert {name: json.loads(text) for name, text in boards.items()} == {
        name: json.loads(text) for name, text in written.items()
    }


def test_the_rules_are_those_of_the_file_and_link_to_your_runbooks():
    groups = render_values("one-tenant").one("PrometheusRule")["spec"]["groups"]
    shipped = yaml.safe_load((CHART / "files/rules.yaml").read_text())["groups"]
    assert [group["name"] for group in groups] == [group["name"] for group in shipped]
    assert [len(group["rules"]) for group in groups] == [len(group["rules"]) for group in shipped]
    links = [rule["annotations"]["runbook_url"] for rule in groups[-1]["rules"]]
    assert all(link.startswith("https://docs.example.com/filmgate/runbooks/") for link in links)


@pytest.mark.parametrize("gpu_metrics", GpuMetrics)
def test_the_rules_of_a_release_are_those_of_the_command_with_its_labels(gpu_metrics):
    chosen = [
        "--set",
        f"monitoring.rules.gpuMetrics={gpu_metrics},monitoring.rules.dcgmLabels.exported_namespace=films",
    ]
    runbooks = "https://docs.example.com/filmgate/runbooks"
    for options, labels in (
        ([], {"namespace": "films"}),
        (["--set", "monitoring.prometheusLabels.job=a/b"], {"job": "a/b"}),
    ):
        spec = render_values("one-tenant", *chosen, *options).one("PrometheusRule")["spec"]
        release = Release(labels, {"exported_namespace": "films"})
        assert spec == yaml.safe_load(rules_file(runbooks, gpu_metrics, release))


@pytest.mark.parametrize(
    ("gpu_metrics", "counters", "name"),
    [
        ("auto", "true", "DCGM_FI_DEV_GPU_TEMP{}"),
        ("auto", "false", 'filmgate_gpu_temperature_celsius{namespace="films"}'),
        ("dcgm", "false", "DCGM_FI_DEV_GPU_TEMP{}"),
        ("filmgate", "true", 'filmgate_gpu_temperature_celsius{namespace="films"}'),
    ],
)
def test_the_alerts_on_gpus_read_the_dcgm_exporter_where_it_has_our_counters(
    tmp_path, gpu_metrics, counters, name
):
    """promtool accepts the rules of the chart."""
    chosen = f"monitoring.rules.gpuMetrics={gpu_metrics},monitoring.dcgmCounters={counters}"
    spec = render_values("one-tenant", "--set", chosen).one("PrometheusRule")["spec"]
    rules = {rule.get("alert"): rule["expr"] for group in spec["groups"] for rule in group["rules"]}
    assert rules["FilmgateGpuHot"] == f"{name} >= 83"
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    code, output = promtool("check", "rules", tmp_path / "rules.yaml")
    assert code == 0, output


def test_the_schema_knows_every_section_of_the_settings():
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    sections = {
        name for name, field in Settings.model_fields.items() if hasattr(field.annotation, "model_fields")
    }
    assert set(schema["properties"]["settings"]["propertyNames"]["enum"]) == sections


def test_a_worker_has_settings_of_its_own():
    options = ["--set", "settings.pipeline.offload=none,workers.wan.settings.pipeline.offload=layers"]
    pods = render_values("two-zones", *options).pods
    offload = [
        read_settings(environment(pods[name]["spec"]["containers"][0]))[0].pipeline.offload
        for name in ("films-worker-wan", "films-managed")
    ]
    assert offload == ["layers", "none"]


BREAKS = {
    "a misspelt field of a pod": (
        "workers.yaml",
        "terminationGracePeriodSeconds:",
        "terminationGraceSeconds:",
        "terminationGraceSeconds",
    ),
    "a policy that Karpenter does not know": (
        "karpenter.yaml",
        "consolidationPolicy: WhenEmpty",
        "consolidationPolicy: Never",
        "Never",
    ),
    "a KEDA trigger without a required field": ("keda.yaml", "threshold:", "treshold:", "treshold"),
    "a node class that breaks a CEL rule": (
        "karpenter.yaml",
        "    - alias: {{ $karpenter.amiAlias }}",
        "    - {alias: al2023@v1, id: ami-1}",
        "alias",
    ),
}


@needs_crds
@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_chart_is_refused(name, tmp_path, custom_resources):
    file, old, new, word = BREAKS[name]
    chart = shutil.copytree(CHART, tmp_path / "filmgate")
    template = chart / "templates" / file
    assert old in template.read_text()
    template.write_text(template.read_text().replace(old, new))
    rendered = render("--values", ROOT / "deploy/values/one-tenant.yaml", chart=chart)
    found = faults(rendered.manifests, custom_resources)
    assert found, "nothing noticed the fault"
    assert word in " ".join(found)


def test_the_default_values_match_their_schema_key_by_key():
    """A value without a schema would accept anything."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert schema["properties"].keys() - {"global"} == values.keys()
    assert schema["properties"]["workerDefaults"] == schema["properties"]["workers"]["additionalProperties"]
