"""The rules file of Prometheus, with stable output: the Helm chart includes the same rules."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from filmgate.slo.alerts import Alert
from filmgate.slo.gpu_alerts import GpuMetrics, all_alerts
from filmgate.slo.recording import RECORDINGS

Node: TypeAlias = "str | int | float | bool | Mapping[str, Node] | Sequence[Node] | None"

INTERVAL = "30s"
# Every selector in a rule: the name of a metric or recording rule, and its matchers if it has any.
_FILMGATE = re.compile(r"\b(filmgate[_:][a-z0-9_:]+|up)\b(?:\{([^}]*)\})?")
_DCGM = re.compile(r"\b(DCGM_FI_\w+)(?:\{([^}]*)\})?")


@dataclass(frozen=True, slots=True)
class Release:
    """The labels of one release's series; without labels, all series. The DCGM exporter has its own."""

    labels: Mapping[str, str] = field(default_factory=dict)
    dcgm_labels: Mapping[str, str] = field(default_factory=dict)

    def select(self, expression: str) -> str:
        """The same PromQL on only the series of this release."""
        return _with_labels(_DCGM, _with_labels(_FILMGATE, expression, self.labels), self.dcgm_labels)


def _with_labels(selectors: re.Pattern[str], expression: str, labels: Mapping[str, str]) -> str:
    if not labels:
        return expression
    own = [f"{label}={json.dumps(value)}" for label, value in labels.items()]

    def add(found: re.Match[str]) -> str:
        return f"{found[1]}{{{','.join([*filter(None, [found[2]]), *own])}}}"

    return selectors.sub(add, expression)


ALL_RELEASES = Release()


def rules_file(
    runbooks: str = "", gpu_metrics: GpuMetrics = GpuMetrics.FILMGATE, release: Release = ALL_RELEASES
) -> str:
    """The recording rules and alerts as YAML, for the series of one release or of all."""
    recorded: list[Node] = [_to_recording(name, text, release) for name, text in RECORDINGS.items()]
    alerts: list[Node] = [_to_rule(alert, runbooks, release) for alert in all_alerts(gpu_metrics)]
    groups: list[Node] = [
        {"name": "filmgate-recordings", "interval": INTERVAL, "rules": recorded},
        {"name": "filmgate-alerts", "interval": INTERVAL, "rules": alerts},
    ]
    return to_yaml({"groups": groups})


def runbook_url(alert: Alert, runbooks: str) -> str:
    """The page under the published runbooks; without them, its path in the source folder."""
    if not runbooks:
        return f"docs/runbooks/{alert.runbook}.md"
    return f"{runbooks.rstrip('/')}/{alert.runbook}/"


def _to_recording(name: str, expression: str, release: Release) -> Node:
    """A recorded series has the labels of its release: the sums in its expression drop them."""
    labels: dict[str, Node] = {"labels": dict(release.labels)} if release.labels else {}
    return {"record": name, "expr": release.select(expression), **labels}


def _to_rule(alert: Alert, runbooks: str, release: Release) -> Node:
    return {
        "alert": alert.name,
        "expr": release.select(alert.expression),
        "for": alert.hold,
        "labels": {"severity": alert.severity.value, **release.labels},
        "annotations": {
            "summary": alert.summary,
            "runbook_url": runbook_url(alert, runbooks),
        },
    }


def to_yaml(node: Node) -> str:
    """The document with a line end. Strings are quoted as in JSON, which YAML includes."""
    return "\n".join(_lines(node)) + "\n"


def _lines(node: Node, indent: str = "") -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if _is_nested(value):
                yield f"{indent}{key}:"
                yield from _lines(value, indent + "  ")
            else:
                yield f"{indent}{key}: {json.dumps(value)}"
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for item in node:
            first, *rest = _lines(item, indent + "  ") if _is_nested(item) else [json.dumps(item)]
            yield f"{indent}- {first.strip()}"
            yield from rest
    else:
        yield f"{indent}{json.dumps(node)}"


def _is_nested(node: Node) -> bool:
    return isinstance(node, Mapping | Sequence) and not isinstance(node, str) and len(node) > 0
