"""Draws the timelines of the plain and the overlapped loop as one SVG with a common time axis."""

from collections.abc import Mapping, Sequence

from filmgate.pipeline.transfer.streams import LANES, Span

COLOURS = {"decode": "#2f6fb0", "copy": "#d98c21", "encode": "#3f9a5d", "write": "#8a63b8"}
WIDTH, LEFT, LANE_HEIGHT, GAP = 960, 90, 22, 6
STYLE = "font-family='ui-sans-serif, system-ui, sans-serif' font-size='13' fill='#444'"


def draw_timeline(loops: Mapping[str, Sequence[Span]], caption: str) -> str:
    """An SVG document with one block of lanes per loop, all at the same scale."""
    end = max((span.stop for spans in loops.values() for span in spans), default=1.0)
    scale = (WIDTH - LEFT - 20) / end
    body, top = [], 34
    for title, spans in loops.items():
        body.append(_text(LEFT, top - 6, f"{title}: {max(s.stop for s in spans):.2f} s", weight="600"))
        for lane in LANES:
            body.append(_lane(lane, [s for s in spans if s.lane == lane], top, scale))
            top += LANE_HEIGHT + GAP
        top += 34
    body.append(_axis(top - 24, end, scale))
    body.append(_text(LEFT, top + 16, caption))
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {top + 28}' {STYLE} role='img'>"
    paper = "<rect width='100%' height='100%' fill='#ffffff'/>"
    return "\n".join([head, paper, *body, "</svg>"]) + "\n"


def _lane(lane: str, spans: Sequence[Span], top: float, scale: float) -> str:
    width = WIDTH - LEFT - 20
    track = f"<rect x='{LEFT}' y='{top}' width='{width}' height='{LANE_HEIGHT}' fill='#f2f3f5'/>"
    bars = "".join(
        f"<rect x='{LEFT + s.start * scale:.2f}' y='{top}' height='{LANE_HEIGHT}' fill='{COLOURS[lane]}' "
        f"width='{max((s.stop - s.start) * scale, 0.4):.2f}' stroke='#fff' stroke-width='0.3'/>"
        for s in spans
    )
    return _text(LEFT - 8, top + 16, lane, anchor="end") + track + bars


def _axis(y: float, end: float, scale: float) -> str:
    step = next((s for s in (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30) if end / s <= 12), 60)
    ticks = [n * step for n in range(int(end / step) + 1)]
    return "".join(_text(LEFT + t * scale, y, f"{t:g} s", anchor="middle") for t in ticks)


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "400") -> str:
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-weight='{weight}'>{safe}</text>"
