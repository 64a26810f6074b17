"""The picture of a replay: workers and waiting jobs over time, one panel per workload, as SVG text."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from filmgate.planner.fleet.replay import Replay

_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _GAP = 860, 120, 56, 16, 54, 58
_MAX_POINTS = 700
_COLOURS = ("#1d4e89", "#c8553d")
_WAITING = "#d9d9d9"


@dataclass(frozen=True, slots=True)
class Panel:
    """One workload: its title, and a replay for each of two settings with a line of text."""

    title: str
    replays: tuple[tuple[str, Replay], ...]


def draw_replays(panels: Sequence[Panel]) -> str:
    """One SVG. Waiting jobs are those of the first settings of a panel."""
    height = _TOP + len(panels) * (_PANEL + _GAP)
    font = 'font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {font}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        *_legend(panels[0]),
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _TOP + number * (_PANEL + _GAP))
    return "\n".join([*parts, "</svg>", ""])


def _legend(panel: Panel) -> list[str]:
    names = [name.partition(":")[0] for name, _ in panel.replays]
    lines = [
        f'<text x="{_LEFT + 160 * place}" y="20" fill="{colour}">workers, {escape(name)}</text>'
        for place, (name, colour) in enumerate(zip(names, _COLOURS, strict=False))
    ]
    where = _LEFT + 160 * len(names)
    return [*lines, f'<text x="{where}" y="20" fill="#777">grey: waiting jobs, {escape(names[0])}</text>']


def _panel(panel: Panel, top: float) -> list[str]:
    first = panel.replays[0][1]
    begin, end = first.series[0][0], max(replay.series[-1][0] for _, replay in panel.replays)
    most_workers = max(workers for _, replay in panel.replays for _, workers, _ in replay.series)
    most_waiting = max(1, *(waiting for _, _, waiting in first.series))
    bottom, note = top + _PANEL, f"at most {most_waiting} jobs wait"

    def x(at: float) -> float:
        return _LEFT + (at - begin) / max(1.0, end - begin) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float, most: float) -> float:
        return bottom - value / most * (_PANEL - 20)

    waiting = [(x(at), y(count, most_waiting)) for at, _, count in _thin(first.series)]
    area = " ".join(f"{a:.1f},{b:.1f}" for a, b in [(x(begin), bottom), *waiting, (waiting[-1][0], bottom)])
    parts = [
        f'<text x="{_LEFT}" y="{top + 10}" font-weight="bold">{escape(panel.title)}</text>',
        f'<polygon points="{area}" fill="{_WAITING}"/>',
        f'<line x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH - _RIGHT}" y2="{bottom}" stroke="#333"/>',
        f'<text x="4" y="{y(most_workers, most_workers) + 4:.1f}">{most_workers} GPUs</text>',
        f'<text x="4" y="{bottom}">0</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{top + 10}" text-anchor="end" fill="#777">{note}</text>',
    ]
    for place, ((text, replay), colour) in enumerate(zip(panel.replays, _COLOURS, strict=False)):
        points = _steps([(x(at), y(workers, most_workers)) for at, workers, _ in _thin(replay.series)])
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        line = bottom + 16 + 14 * place
        parts.append(f'<text x="{_LEFT}" y="{line}" fill="{colour}">{escape(text)}</text>')
    return parts


def _thin(series: Sequence[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """At most _MAX_POINTS points, each with the largest values of those it stands for."""
    size = -(-len(series) // _MAX_POINTS)
    chunks = [series[place : place + size] for place in range(0, len(series), size)]
    return [(chunk[0][0], max(one[1] for one in chunk), max(one[2] for one in chunk)) for chunk in chunks]


def _steps(points: Sequence[tuple[float, float]]) -> str:
    found = [points[0]]
    for here in points[1:]:
        if here[1] != found[-1][1]:
            found += [(here[0], found[-1][1]), here]
    found.append((points[-1][0], found[-1][1]))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in found)
