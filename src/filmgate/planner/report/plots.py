"""Plots as SVG text, without scripts, fonts or external resources."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from filmgate.catalog.gpus import GIB
from filmgate.planner.answer import Curve, MemoryAnswer, Plots
from filmgate.planner.report.numbers import count, seconds, usd

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 28, 48
MAX_SPARSE_DECADES = 3  # an axis of more decades has no ticks between them
COLOURS = ("#1d4e89", "#c8553d", "#3b7a57", "#8a5a9e", "#b08900", "#4a6fa5", "#7d4f50", "#5b8e7d")


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps a range of values to pixels, linearly or logarithmically."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def at(self, value: float) -> float:
        low, high, v = self.low, self.high, value
        if self.is_log:
            low, high, v = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        share = (v - low) / (high - low) if high > low else 0.0
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.is_log:
            first, last = math.floor(math.log10(self.low)), math.floor(math.log10(self.high))
            steps = (1, 2, 5) if last - first < MAX_SPARSE_DECADES else (1,)
            every = [step * 10.0**power for power in range(first, last + 1) for step in steps]
            return [tick for tick in every if self.low <= tick <= self.high]
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step)
        return [k * step for k in range(first, int(self.high / step) + 1)]


def _round_step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)


def cost_plot(plots: Plots) -> str:
    """Cost per unit against volume, with marks at the break-even points and the requested volume."""
    points = [p for curve in plots.cost for p in curve.points]
    if not points:
        return ""
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    x = Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT, is_log=True)
    y = Axis(min(ys) / 1.5, max(ys) * 1.5, HEIGHT - BOTTOM, TOP, is_log=True)
    body = _grid(x, y, count, usd) + _curves(plots.cost, x, y)
    if plots.volume:
        body += _vertical_mark(x, plots.volume, f"requested: {count(plots.volume)}")
    shown = [(name, volume) for name, volume in plots.break_even if x.low <= volume <= x.high]
    for row, (name, volume) in enumerate(shown, start=1):
        body += _vertical_mark(x, volume, f"{name}: {count(volume)} per day", row)
    legend = _legend([curve.name for curve in plots.cost])
    return _svg(f"Cost against {plots.volume_name}", body, (plots.volume_name, plots.cost_name), legend)


def latency_plot(plots: Plots) -> str:
    """Latency against the load, with the SLO."""
    points = [p for curve in plots.latency for p in curve.points]
    if not points:
        return ""
    slo, floor = plots.slo_seconds, min(value for _, value in points)
    ceiling = min(max(value for _, value in points), 6 * floor)
    if slo and slo <= 6 * floor:
        ceiling = max(ceiling, slo * 1.05)
    x = Axis(0.0, 1.0, LEFT, WIDTH - RIGHT, is_log=False)
    y = Axis(0.0, ceiling, HEIGHT - BOTTOM, TOP, is_log=False)
    curves = [Curve(c.name, tuple(p for p in c.points if p[1] <= ceiling)) for c in plots.latency]
    body = _grid(x, y, lambda v: f"{v:.0%}", seconds) + _curves(curves, x, y)
    if slo and slo <= ceiling:
        body += _horizontal_mark(y, slo, f"SLO {seconds(slo)}")
    elif slo:
        body += _text(WIDTH - RIGHT - 4, TOP - 5, "end", f"SLO {seconds(slo)}, above this plot")
    return _svg("Latency against load", body, (plots.load_name, "latency"), _legend([c.name for c in curves]))


def memory_plot(memory: MemoryAnswer) -> str:
    """A stack of memory lines for every stage, with the capacity of one GPU."""
    stages = list(dict.fromkeys(stage for line in memory.lines for stage in line.stages))
    totals = {s: sum(line.bytes for line in memory.lines if s in line.stages) for s in stages}
    top = max([*totals.values(), memory.capacity_bytes or 0.0]) / GIB * 1.08
    y = Axis(0.0, top, HEIGHT - BOTTOM, TOP, is_log=False)
    slot = (WIDTH - LEFT - RIGHT) / max(len(stages), 1)
    body = _grid(None, y, str, lambda v: f"{v:g}")
    for i, stage in enumerate(stages):
        left = LEFT + slot * (i + 0.2)
        body += _stack(memory, stage, y, left, slot * 0.6)
        peak = " (peak)" if stage == memory.peak_stage else ""
        body += _text(left + slot * 0.3, HEIGHT - BOTTOM + 18, "middle", stage + peak)
    if memory.capacity_bytes:
        body += _horizontal_mark(
            y, memory.capacity_bytes / GIB, f"capacity {memory.capacity_bytes / GIB:.0f} GiB"
        )
    legend = _legend([line.name for line in memory.lines])
    return _svg("Memory per GPU by stage, GiB", body, ("stage", "GiB"), legend)


def _stack(memory: MemoryAnswer, stage: str, y: Axis, left: float, width: float) -> str:
    base, found = 0.0, ""
    for i, line in enumerate(memory.lines):
        if stage not in line.stages:
            continue
        upper, lower = y.at((base + line.bytes) / GIB), y.at(base / GIB)
        colour = COLOURS[i % len(COLOURS)]
        title = f"{line.name}: {line.bytes / GIB:.1f} GiB"
        box = f'x="{left:.1f}" y="{upper:.1f}" width="{width:.1f}" height="{max(lower - upper, 0.5):.1f}"'
        found += f'<rect {box} fill="{colour}"><title>{escape(title)}</title></rect>'
        base += line.bytes
    return found


def _grid(x: Axis | None, y: Axis, name_x: Callable[[float], str], name_y: Callable[[float], str]) -> str:
    lines = ""
    for tick in y.ticks():
        at = y.at(tick)
        lines += f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        lines += _text(LEFT - 6, at + 4, "end", name_y(tick))
    foot = HEIGHT - BOTTOM
    for tick in x.ticks() if x else []:
        at = x.at(tick) if x else 0.0
        lines += f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{foot}" y2="{foot + 4}"/>'
        lines += _text(at, foot + 18, "middle", name_x(tick))
    lines += f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{foot}" y2="{foot}"/>'
    return lines + f'<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{foot}"/>'


def _curves(curves: Sequence[Curve], x: Axis, y: Axis) -> str:
    found = ""
    for i, curve in enumerate(curves):
        path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in curve.points)
        dash = ' stroke-dasharray="6 4"' if i else ""
        pen = f'stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2.5"{dash}'
        found += f'<polyline fill="none" {pen} points="{path}"/>'
    return found


def _vertical_mark(x: Axis, value: float, name: str, row: int = 0) -> str:
    """A line with its name in a row of its own above the axis; the first one stands out."""
    at, foot = x.at(value), HEIGHT - BOTTOM
    anchor, shift = ("end", -5) if at > WIDTH / 2 else ("start", 5)
    kind = "mark" if row else "mark strong"
    line = f'<line class="{kind}" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{foot}"/>'
    return line + _text(at + shift, foot - 8 - 18 * row, anchor, name)


def _horizontal_mark(y: Axis, value: float, name: str) -> str:
    at = y.at(value)
    line = f'<line class="mark strong" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
    return line + _text(WIDTH - RIGHT - 4, at - 5, "end", name)


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<li><span style="background:{COLOURS[i % len(COLOURS)]}"></span>{escape(name)}</li>'
        for i, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def _svg(title: str, body: str, axes: tuple[str, str], legend: str) -> str:
    """A figure with the names of its horizontal and its vertical axis."""
    below, beside = axes
    middle, centre = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    names = _text(middle, HEIGHT - 8, "middle", below)
    turn = f'transform="rotate(-90 14 {centre:.0f})"'
    names += f'<text x="14" y="{centre:.0f}" text-anchor="middle" {turn}>{escape(beside)}</text>'
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    return f"<figure><figcaption>{escape(title)}</figcaption>{head}{body}{names}</svg>{legend}</figure>"
