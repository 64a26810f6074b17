"""Prometheus, promtool and Alertmanager from Debian's packages, and rule tests on simulated histories."""

import os
import re
import shutil
import subprocess

import pytest
import yaml

from filmgate.slo.dashboards import all_dashboards
from filmgate.slo.rules import INTERVAL

# A folder with the programs, where they are not installed.
FOLDER_VARIABLE = "FILMGATE_TEST_PROMETHEUS"


def find_program(name):
    """The path of a program. Without it the test is skipped, in CI it fails."""
    found = shutil.which(name, path=os.environ.get(FOLDER_VARIABLE)) or shutil.which(name)
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{name} is not installed; .ci/run installs it")
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus prometheus-alertmanager")
    return found


def promtool(*arguments):
    done = subprocess.run(
        [find_program("promtool"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def check_histories(folder, rules, tests):
    """Run `promtool test rules`. Each test is (interval, series, checks); a check is (time, query, value)."""
    (folder / "rules.yml").write_text(rules.replace(f'interval: "{INTERVAL}"', 'interval: "1m"'))
    document = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": interval,
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {"expr": query, "eval_time": at, "exp_samples": [{"labels": "{}", "value": value}]}
                    for at, query, value in checks
                ],
            }
            for interval, series, checks in tests
        ],
    }
    (folder / "tests.yml").write_text(yaml.safe_dump(document))
    return promtool("test", "rules", folder / "tests.yml")


def firing(alert):
    """PromQL: 1 if the alert fires, else 0."""
    return f'clamp_max(count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0), 1)'


def dashboard_queries():
    """(panel, PromQL) of every dashboard, with the variable replaced by a pattern that matches all."""
    return [
        (f"{dashboard['title']}: {panel['title']}", re.sub(r"\$(?!__)\w+", ".*", target["expr"]))
        for dashboard in all_dashboards().values()
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]
