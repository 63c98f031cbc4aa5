"""What every stage holds and how late it reads, as small bars of inline SVG."""

from collections.abc import Sequence

from pipetrain.report.style import GRAY
from pipetrain.report.sweep.colors import group_styles
from pipetrain.report.sweep.groups import SweepGroup
from pipetrain.report.text_table import size_of

_HEIGHT, _NUMBER = 40.0, 12.0
_WIDEST_BAR, _MOST_WIDTH = 34.0, 420.0
_NUMBERED = 16
"""Stages at most whose bars have their number above them."""


def memory_bars(groups: Sequence[SweepGroup]) -> list[str]:
    """Peak bytes of each stage: weights, all their versions, and on them activations; one scale for all groups."""
    held = [(group.by_stage("weight_bytes_peak"), group.by_stage("activation_bytes_peak")) for group in groups]
    most = max((sum(stage) for each in held for stage in zip(*each, strict=False)), default=0.0)
    found = []
    for (weights, activations), look in zip(held, group_styles(groups), strict=True):
        said = [f"stage {r}: {size_of(w)} of weights, {size_of(a)} of activations"
                for r, (w, a) in enumerate(zip(weights, activations, strict=False))]  # fmt: skip
        numbers = [size_of(w + a) for w, a in zip(weights, activations, strict=False)]
        found.append(_bars([weights, activations], most, look.color, said, numbers))
    return found


def staleness_bars(groups: Sequence[SweepGroup]) -> list[str]:
    """Updates between the weights that a forward reads and its own update, of each stage the most that was seen."""
    most = max((late for group in groups for late in group.staleness), default=0)
    found = []
    for group, look in zip(groups, group_styles(groups), strict=True):
        said = [f"stage {r}: {late} updates late" for r, late in enumerate(group.staleness)]
        found.append(_bars([group.staleness], most, look.color, said, [str(late) for late in group.staleness]))
    return found


def _bars(
    layers: Sequence[Sequence[float]], most: float, color: str, said: Sequence[str], numbers: Sequence[str]
) -> str:
    if not said:
        return "-"
    step = min(_WIDEST_BAR if max(map(len, numbers)) < 4 else 1.9 * _WIDEST_BAR, _MOST_WIDTH / len(said))
    pixels = _HEIGHT / most if most else 0.0
    parts = []
    for stage, text in enumerate(said):
        x, y, bars = stage * step, _NUMBER + _HEIGHT, ""
        for layer, opacity in zip(layers, (1, 0.35), strict=False):
            height = pixels * layer[stage]
            y -= height
            bars += (
                f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{max(0.5, step - 2):.1f}" height="{height:.1f}" '
                f'fill="{color}" opacity="{opacity}"/>'
            )
        number = f'<text x="{x + step / 2:.1f}" y="{y - 2:.1f}" text-anchor="middle">{numbers[stage]}</text>'
        parts.append(f"<g><title>{text}</title>{bars}{number if len(said) <= _NUMBERED else ''}</g>")
    width, height = step * len(said), _NUMBER + _HEIGHT + 1
    ground = f'<line x1="0" x2="{width:.1f}" y1="{height - 0.5:g}" y2="{height - 0.5:g}" stroke="{GRAY}"/>'
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.1f} {height:.1f}"'
    return f'<svg class="bars" {size}>{"".join(parts)}{ground}</svg>'
