"""Grafana dashboards from code: service, model, GPU, tenant and cost, in the JSON that Grafana imports."""

from filmgate.slo.panels import DASHBOARDS, Dashboard, Panel

SCHEMA_VERSION = 39
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _PER_ROW = 12, 8, 2
Document = dict[str, object]


def all_dashboards() -> dict[str, Document]:
    """Every dashboard by its uid, in the JSON that Grafana imports. The output is stable."""
    return {one.name: _to_document(one) for one in DASHBOARDS}


def _to_document(dashboard: Dashboard) -> Document:
    variables: list[Document] = [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
    if dashboard.variable is not None:
        label, metric = dashboard.variable
        variables.append(
            {
                "name": label,
                "type": "query",
                "datasource": _SOURCE,
                "query": f"label_values({metric}, {label})",
                "includeAll": True,
                "multi": True,
                "refresh": 2,
            }
        )
    return {
        "uid": dashboard.name,
        "title": dashboard.title,
        "tags": ["filmgate"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_to_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }


def _to_panel(number: int, panel: Panel) -> Document:
    row, column = divmod(number, _PER_ROW)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": row * _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend, "datasource": _SOURCE}
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }
