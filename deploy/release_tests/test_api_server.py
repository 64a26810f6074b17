"""A real API server accepts every manifest of the chart, with Pod Security `restricted` in the namespace."""

import pytest
import yaml

from deploy.tests.api_server import ASSETS, api_server
from deploy.tests.charts import VALUES, render
from deploy.tests.test_chart import CRDS, needs_crds

pytestmark = [
    pytest.mark.skipif(not ASSETS, reason="set KUBEBUILDER_ASSETS to etcd, kube-apiserver and kubectl"),
    needs_crds,
]
NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "films", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
}


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api-server")
    with api_server(folder) as kubectl:
        for path in sorted(CRDS.glob("*.yaml")):
            assert kubectl("apply", "--server-side", "-f", path).returncode == 0
        kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        (folder / "namespace.yaml").write_text(yaml.safe_dump(NAMESPACE))
        assert kubectl("apply", "-f", folder / "namespace.yaml").returncode == 0
        yield kubectl


def apply(kubectl, manifests, folder):
    path = folder / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(manifests))
    return kubectl("apply", "--server-side", "--dry-run=server", "--namespace", "films", "-f", path)


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_the_server_accepts_every_manifest(kubectl, path, tmp_path):
    manifests = render("--values", path).manifests
    done = apply(kubectl, manifests, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")  # a pod that breaks `restricted` is a warning on stderr
    assert done.stdout.count("serverside-applied (server dry run)") == len(manifests)


def test_the_server_refuses_what_our_own_checks_refuse(kubectl, tmp_path):
    rendered = render("--values", next(path for path in VALUES if path.stem == "one-tenant"))
    pool = rendered.one("NodePool")
    pool = pool | {"spec": pool["spec"] | {"disruption": {"consolidationPolicy": "Never"}}}
    scaled = rendered.one("ScaledObject")
    scaled = scaled | {"spec": scaled["spec"] | {"triger": []}}
    for broken, word in ((pool, "consolidationPolicy"), (scaled, "triger")):
        done = apply(kubectl, [broken], tmp_path)
        assert (done.returncode != 0, word in done.stderr) == (True, True)
