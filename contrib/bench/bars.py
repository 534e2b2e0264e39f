"""Horizontal bars as an SVG picture: a length, its spread as a whisker, and a label.

Text in, text out; no fonts, scripts or links, so that a README can show it. Each group has a
scale of its own that begins at zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 860
NAME_END = 210
BAR_ROOM = 420
ROW = 26
BAR = 16
HEAD = 40
GROUP_HEAD = 30
GAP = 14
FILL, ACCENT, INK = "#9db4c8", "#3f7d58", "#222"
STYLE = 'font-family="sans-serif" font-size="13"'


@dataclass(frozen=True, slots=True)
class Bar:
    """`value` is the bar's length, `low` to `high` the whisker, in the group's unit."""

    name: str
    value: float
    low: float
    high: float
    label: str


@dataclass(frozen=True, slots=True)
class Group:
    """Bars on one scale."""

    title: str
    bars: tuple[Bar, ...]


def draw(title: str, groups: Sequence[Group], accent: str = "ours") -> str:
    """The picture; bars whose names begin with `accent` are set off by colour."""
    parts = [_text(10, 24, title, size=15, weight="bold")]
    y = HEAD
    for group in groups:
        parts.append(_text(10, y + 18, group.title, weight="bold"))
        y += GROUP_HEAD
        scale = BAR_ROOM / (max((max(b.value, b.high) for b in group.bars), default=0) or 1)
        for bar in group.bars:
            parts += _bar(bar, y, scale, ACCENT if bar.name.startswith(accent) else FILL)
            y += ROW
        y += GAP
    return _page(parts, y)


def _bar(bar: Bar, y: float, scale: float, colour: str) -> Iterable[str]:
    middle = y + BAR / 2
    length = max(bar.value * scale, 0)
    low, high = (NAME_END + max(v * scale, 0) for v in (bar.low, bar.high))
    end = max(NAME_END + length, high) + 8
    yield _text(NAME_END - 8, y + BAR - 3, bar.name, anchor="end")
    yield f'<rect x="{NAME_END}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>'
    yield f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="{INK}"/>'
    for x in (low, high):
        yield f'<path d="M{x:.1f} {middle - 4}v8" stroke="{INK}"/>'
    yield _text(end, y + BAR - 3, bar.label)


def _text(
    x: float, y: float, text: str, *, size: int = 13, weight: str = "normal", anchor: str = "start"
) -> str:
    look = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y}" {look} fill="{INK}">{escape(text)}</text>'


def _page(parts: Iterable[str], height: float) -> str:
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {STYLE}>'
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])
