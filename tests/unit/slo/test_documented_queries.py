"""The queries of the docs count the service once, although every server reports all of it."""

import re
from pathlib import Path

import pytest
import yaml

from tests.prometheus import promtool

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("tutorial/first-bill.md", "how-to/connect-grafana.md")
TEXT = "\n".join((DOCS / page).read_text() for page in PAGES)
QUERIES = re.findall(r"(?:^|`)((?:sum|histogram_quantile)[ (].*?)(?:`|$)", TEXT, re.MULTILINE)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_takes_the_maximum_over_servers(query):
    assert len(QUERIES) == 5
    assert re.search(r"max without \(instance, pod\) \((rate\()?filmgate_\w+", query)


@pytest.mark.parametrize("query", [query for query in QUERIES if "_usd_" in query])
def test_the_bill_is_the_same_with_two_servers_and_after_a_rollout(query, tmp_path):
    """One dollar per hour for thirty days. After half of them, two new servers replace the first two."""
    usd = {"30d": 720, "1d": 24}[re.search(r"\[(\w+)", query)[1]]
    name = 'filmgate_cost_usd_total{tenant="acme",model="wan",route="gpu",instance="%s",pod="%s"}'
    histories = {"a": "100+1x359", "b": "100+1x359", "c": "_x360 460+1x360", "d": "_x360 460+1x360"}
    test = {
        "interval": "1h",
        "input_series": [{"series": name % (pod, pod), "values": one} for pod, one in histories.items()],
        "promql_expr_test": [
            {
                "expr": f"round({query})",
                "eval_time": "720h",
                "exp_samples": [{"labels": '{tenant="acme"}', "value": usd}],
            }
        ],
    }
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "5m", "tests": [test]}))
    code, output = promtool("test", "rules", path)
    assert code == 0, output
