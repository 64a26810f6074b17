"""The rules file of Prometheus, with stable output: the Helm chart includes the same rules."""

from filmgate.slo.alerts import Alert
from filmgate.slo.gpu_alerts import GpuMetrics, all_alerts
from filmgate.slo.recording import RECORDINGS
from filmgate.slo.yaml_text import Node, to_yaml

INTERVAL = "30s"


def rule_groups(runbooks: str = "", gpu_metrics: GpuMetrics = GpuMetrics.FILMGATE) -> list[Node]:
    """The groups of rules, as a rules file or a PrometheusRule has them under `groups`."""
    recorded: list[Node] = [{"record": rule.name, "expr": rule.expression} for rule in RECORDINGS]
    alerts: list[Node] = [_to_rule(alert, runbooks) for alert in all_alerts(gpu_metrics)]
    return [
        {"name": "filmgate-recordings", "interval": INTERVAL, "rules": recorded},
        {"name": "filmgate-alerts", "interval": INTERVAL, "rules": alerts},
    ]


def rules_file(runbooks: str = "", gpu_metrics: GpuMetrics = GpuMetrics.FILMGATE) -> str:
    """The rules file as YAML."""
    return to_yaml({"groups": rule_groups(runbooks, gpu_metrics)})


def runbook_url(alert: Alert, runbooks: str) -> str:
    """The page under the published runbooks; without them, its path in the source folder."""
    if not runbooks:
        return f"docs/runbooks/{alert.runbook}.md"
    return f"{runbooks.rstrip('/')}/{alert.runbook}/"


def _to_rule(alert: Alert, runbooks: str) -> Node:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.hold,
        "labels": {"severity": alert.severity.value},
        "annotations": {
            "summary": alert.summary,
            "runbook_url": runbook_url(alert, runbooks),
        },
    }
