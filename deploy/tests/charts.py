"""Renders the chart with helm, and reads the manifests."""

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/chart/filmgate"
VALUES = sorted((ROOT / "deploy/values").glob("*.yaml"))
# The loader in C is ten times as fast.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
HELM = os.environ.get("FILMGATE_TEST_HELM", str(ROOT / "build/helm-4.3.1/helm"))


@dataclass(frozen=True)
class Rendered:
    """The manifests of one set of values."""

    manifests: list[dict]

    def of(self, kind, name=""):
        """The manifests of a kind whose name contains `name`."""
        return [m for m in self.manifests if m["kind"] == kind and name in m["metadata"]["name"]]

    def one(self, kind, name=""):
        (found,) = self.of(kind, name)
        return found

    @property
    def pods(self):
        """The pod templates, by the name of their owner."""
        owners = [m for m in self.manifests if "template" in m.get("spec", {}) and m["kind"] != "NodePool"]
        return {owner["metadata"]["name"]: owner["spec"]["template"] for owner in owners}


def run_helm(*arguments, chart=CHART, release="films"):
    command = [HELM, arguments[0], *([release] if arguments[0] == "template" else []), str(chart)]
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run(
        [*command, *map(str, arguments[1:])], capture_output=True, text=True, check=False, env=environ
    )


def render(*options, chart=CHART, release="films"):
    return _render(tuple(map(str, options)), chart, release)


@cache
def _render(options, chart, release):
    done = run_helm("template", "--namespace", "films", *options, chart=chart, release=release)
    assert done.returncode == 0, done.stderr
    return Rendered([manifest for manifest in yaml.load_all(done.stdout, LOADER) if manifest])


def render_values(name, *options):
    return render("--values", ROOT / f"deploy/values/{name}.yaml", *options)


def environment(container):
    return {variable["name"]: variable["value"] for variable in container.get("env", [])}


def containers(pod):
    return pod["spec"].get("initContainers", []) + pod["spec"]["containers"]
