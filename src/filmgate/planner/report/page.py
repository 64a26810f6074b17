"""The answer as one self-contained HTML page with light, dark, phone and print styles."""

import re
from collections.abc import Iterable
from datetime import date
from html import escape

from filmgate.planner.answer import Answer
from filmgate.planner.report.plots import cost_plot, latency_plot, memory_plot
from filmgate.planner.report.record import risks
from filmgate.planner.report.tables import DECISION_TITLE, Table, tables

UNIT = re.compile(r"(\d) (s|ms|h|GiB|x)\b")

STYLE = """
:root{color-scheme:light dark;--ink:#16202a;--soft:#5b6875;--line:#d5dbe1;--paper:#fff;--card:#f5f7f9}
@media(prefers-color-scheme:dark){:root{--ink:#e8edf2;--soft:#9fb0bf;--line:#33414e;--paper:#12181e;--card:#1b242c}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem;font:16px/1.5 system-ui,sans-serif}
body{color:var(--ink);background:var(--paper)}
h1{font-size:1.15rem;font-weight:600;color:var(--soft);margin:.5rem 0}
.verdict{font-size:1.35rem;line-height:1.35;margin:1rem 0;padding:.25rem 0 .25rem 1rem}
.verdict{border-left:5px solid #1d4e89}
.impossible{border-color:#c8553d}
h2{font-size:1.05rem;margin:2rem 0 .5rem}
table{border-collapse:collapse;width:100%;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .5rem;border-bottom:1px solid var(--line);vertical-align:top}
td{overflow-wrap:break-word}
th{color:var(--soft);font-weight:600}
.first{display:grid;gap:0 2rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr))}
.first h2{margin-top:.75rem}
.first ul{margin:0;padding-left:1.1rem;font-size:.875rem}
.note{color:var(--soft);font-size:.875rem}
figure{margin:1rem 0;padding:1rem;background:var(--card);border-radius:8px;break-inside:avoid}
figcaption{font-weight:600}
svg{width:100%;height:auto}
svg text{fill:currentColor;font:12px system-ui,sans-serif}
svg text{paint-order:stroke;stroke:var(--card);stroke-width:4px}
svg .grid{stroke:var(--line)}
svg .axis{stroke:var(--soft)}
svg .mark{stroke:var(--soft);stroke-dasharray:3 3}
svg .strong{stroke:#c8553d;stroke-width:1.5}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1rem}
.legend{margin:.5rem 0 0;padding:0;font-size:.85rem}
.legend span{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
.plots{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr))}
footer{color:var(--soft);font-size:.8rem;margin-top:2rem}
@media(max-width:40rem){svg text{font-size:19px}.verdict{font-size:1.15rem}table{font-size:.75rem}
.scroll{overflow-x:auto}}
@media print{body{max-width:none;padding:0;font-size:10pt}figure{background:none;border:1px solid #ccc}
table{font-size:7pt}th,td{padding:.15rem .25rem}td{overflow-wrap:anywhere}tr{break-inside:avoid}
h2{break-after:avoid}}
"""


def to_page(answer: Answer, today: date) -> str:
    """HTML without scripts and without external resources."""
    plots = [cost_plot(answer.plots), latency_plot(answer.plots)]
    if answer.memory:
        plots.insert(1, memory_plot(answer.memory))
    drawn = "".join(plot for plot in plots if plot)
    kind = "verdict" if answer.is_possible else "verdict impossible"
    found = {table.title: table for table in tables(answer)}
    decision = found.pop(DECISION_TITLE, None)
    first = f"<div>{_table(decision)}</div>" if decision else ""
    if answer.is_possible:
        first += f"<div><h2>Risks</h2>{_list(risks(answer))}</div>"
    body = "".join(_table(table) for table in found.values())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(answer.question)}</title><style>{STYLE}</style></head><body>"
        f'<h1>{escape(answer.question)}</h1><p class="{kind}">{escape(answer.verdict)}</p>'
        f'<div class="first">{first}</div><div class="plots">{drawn}</div>{body}'
        f"<footer><h2>Assumptions</h2>{_list(answer.assumptions)}<h2>Sources</h2>{_list(answer.sources)}"
        f"<p>filmgate plan, {today.isoformat()}</p></footer></body></html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in table.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_kept(escape(text))}</td>" for text in row) + "</tr>" for row in table.rows
    )
    header = f"<thead><tr>{head}</tr></thead>" if any(table.header) else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    title = f"<h2>{escape(table.title)}</h2>"
    return f'{title}<div class="scroll"><table>{header}<tbody>{rows}</tbody></table></div>{note}'


def _kept(text: str) -> str:
    """The text with numbers that stay on the line of their unit."""
    return UNIT.sub("\\1\u00a0\\2", text)


def _list(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
