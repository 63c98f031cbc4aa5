"""Parts of a drawing as SVG: few bytes, the same each time, text as text, and tooltips."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from pipetrain.runner.terminal.style import GRAY, GREEN, INK, ORANGE, RED
from pipetrain.runner.terminal.text_table import shortened
from pipetrain.runner.tracking.files import write_whole

PALE, FAINT = "#e9ecef", "#c3c9d0"
SIZE = 11
"""Pixels of letters."""
LETTER = 0.56
"""Width of a mean letter over its size."""
_HALF = f'<path d="M0-4.2A4.2 4.2 0 0 1 0 4.2Z" fill="{GREEN}"/>'
_RING = '<circle r="4.2" fill="{0}" stroke="{1}" stroke-width="1.5"/>'
MARKS = {
    "seen": _RING.format(GREEN, GREEN),
    "seen in part": _RING.format("#fff", GREEN) + _HALF,
    "not seen": f'<path d="M-4-4L4 4M-4 4L4-4" stroke="{RED}" stroke-width="2.4"/>',
    "undecided": _RING.format("#fff", ORANGE),
    "not tested": f'<circle r="1.8" fill="{GRAY}"/>',
}
"""What was seen -> its mark around the origin, which differs in shape and in color."""
COLORS = {"seen": GREEN, "seen in part": GREEN, "not seen": RED, "undecided": "#b3620a", "not tested": "#5b6470"}


def number(value: float) -> str:
    """A coordinate with one decimal."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def text(x: float, y: float, words: str, **look: str | int) -> str:
    """A line of text on the baseline `y`; `look` are attributes of SVG, such as `font_size`, if not empty."""
    given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in look.items() if value)
    return f'<text x="{number(x)}" y="{number(y)}"{given}>{escape(words, quote=False)}</text>'


def line(x: float, y: float, to_x: float, to_y: float, color: str = INK, width: float = 1) -> str:
    """A straight line."""
    ends = f'x1="{number(x)}" y1="{number(y)}" x2="{number(to_x)}" y2="{number(to_y)}"'
    return f'<line {ends} stroke="{color}" stroke-width="{width:g}"/>'


def rectangle(x: float, y: float, width: float, height: float, fill: str, edge: str = "") -> str:
    """A filled rectangle, with an edge inside if that has a color."""
    more = f' stroke="{edge}" stroke-width="1.6"' if edge else ""
    inside = 0.8 if edge else 0.0
    sides = (x + inside, y + inside, width - 2 * inside, height - 2 * inside)
    x_, y_, width_, height_ = map(number, sides)
    return f'<rect x="{x_}" y="{y_}" width="{width_}" height="{height_}" fill="{fill}"{more}/>'


def mark(kind: str, x: float, y: float) -> str:
    """One of `MARKS` at a place."""
    return f'<g transform="translate({number(x)} {number(y)})">{MARKS[kind]}</g>'


def titled(title: str, *parts: str) -> str:
    """Parts with a tooltip, which browsers show where the drawing is opened by itself."""
    return f"<g><title>{escape(title, quote=False)}</title>{''.join(parts)}</g>"


def legend(x: float, y: float, names: Iterable[str]) -> str:
    """The marks with their names, side by side."""
    parts = []
    for name in names:
        parts += [mark(name, x + 5, y - 4), text(x + 14, y, name, fill=COLORS[name])]
        x += 28 + SIZE * LETTER * len(name)
    return "".join(parts)


def fitting(words: str, width: float, size: float = SIZE) -> str:
    """The words, without their middle where they are wider than so many pixels."""
    return shortened(words, int(width / (size * LETTER)))


def wrapped(words: str, width: float, size: float = SIZE) -> list[str]:
    """The words in lines of at most a width in pixels."""
    most, lines = int(width / (size * LETTER)), [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > most:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def shown(name: str, alternative: str) -> str:
    """A drawing in `images/` as Markdown, with a link to it, as browsers show tooltips only where it is by itself."""
    return f"[![{alternative}](images/{name})](images/{name})"


def write(path: Path, width: float, height: float, parts: Sequence[str]) -> None:
    """Writes a drawing of this size in pixels on white."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {number(width)} {number(height)}" '
    look = f'width="{number(width)}" height="{number(height)}" font-family="Arial, Helvetica, sans-serif" '
    body = "\n".join(each for each in parts if each)
    ground = rectangle(0, 0, width, height, "#fff")
    write_whole(path, f'{head}{look}font-size="{SIZE}" fill="{INK}">\n{ground}\n{body}\n</svg>\n')
