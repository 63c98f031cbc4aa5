"""The forest plot of a paper: for each claim the differences that were measured, with intervals, and the verdict."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from papers.claims import SEEN_IN_PART, Answer, Verdict
from papers.difference import Effect
from papers.paper import Claim
from papers.svg import (
    COLORS,
    FAINT,
    MARKS,
    PALE,
    fitting,
    legend,
    line,
    mark,
    rectangle,
    text,
    titled,
    wrapped,
    write,
)
from pipetrain.reporting.sweep.columns import column_of
from pipetrain.runner.terminal.style import GRAY

WIDTH = 640
_LEFT, _RIGHT = 232, 502
"""Edges of the plot in pixels; what is compared is to the left of it, networks and seeds to the right."""
_ROW, _LINE, _HEAD = 15, 15, 40
_LINEAR, _SHARE = 0.03, 0.55
"""Gains up to this share of the other's mean have a linear axis, whose half is so many decades long."""
_TICKS = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
_APART = 30
"""Pixels from one name of a tick to the next."""
_ENDS = (0.1, 0.3, 1.0, 3.0)
"""Gains at which the axis can end."""


def kind_of(verdict: str) -> str:
    """A verdict as one of `MARKS`."""
    arithmetic = {"holds partly": SEEN_IN_PART, "does not hold": "not seen"}
    kinds = (SEEN_IN_PART, "not seen", "not tested", "undecided")
    found = next((kind for kind in kinds if verdict.startswith(kind)), "seen")
    return next((kind for words, kind in arithmetic.items() if verdict.startswith(words)), found)


def shown(verdict: Verdict) -> list[Answer]:
    """The answers that have a difference, or are decided without one."""
    return [each for each in verdict.answers if each.effect and (each.effect.gain or each.holds is not None)]


def draw(path: Path, claims: Sequence[Claim], network: Callable[[str], str]) -> bool:
    """Draws the claims that have differences; returns False if none has.

    Args:
        path: of the image.
        claims: of a paper.
        network: the network of an experiment.
    """
    drawn = [claim for claim in claims if shown(claim.verdict)]
    if not drawn:
        return False
    axis = _Axis([answer.effect for claim in drawn for answer in shown(claim.verdict) if answer.effect])
    y, parts = float(_HEAD), [legend(8, 14, MARKS), *_heads()]
    zones = []
    for claim in drawn:
        answers = shown(claim.verdict)
        parts.append(line(8, y, WIDTH - 8, y, FAINT, 0.7))
        for words in _claim(claim, y):
            parts += words
            y += _LINE
        for answer in answers:
            zone, drawing = _row(axis, answer, _labels(answer, answers, network), y + 4 + _ROW / 2)
            zones.append(zone)
            parts.append(drawing)
            y += _ROW
        y += 12
    write(path, WIDTH, y + 30, [*zones, *axis.drawn(_HEAD, y), *parts])
    return True


def _heads() -> list[str]:
    return [
        text(8, _HEAD - 8, "claim, and what is compared"),
        text(_LEFT, _HEAD - 8, "← worse"),
        text(_RIGHT, _HEAD - 8, "better →", text_anchor="end"),
        text(_RIGHT + 8, _HEAD - 8, "network, seeds"),
    ]


def _claim(claim: Claim, y: float) -> Iterator[list[str]]:
    """The lines of its number, mark, words and verdict, on white, as the plot goes on behind them."""
    kind = kind_of(claim.verdict.verdict)
    lines = wrapped(claim.row["claim"], WIDTH - 46 - 90)
    for row, words in enumerate(lines):
        drawn = [rectangle(8, y + 1 + _LINE * row, WIDTH - 16, _LINE, "#fff")]
        drawn.append(text(42, y + 14 + _LINE * row, words))
        if row == 0:
            drawn += [text(22, y + 14, f"{claim.number}", text_anchor="end", fill="#5b6470"), mark(kind, 31, y + 10)]
            drawn.append(text(WIDTH - 8, y + 14, kind, text_anchor="end", fill=COLORS[kind], font_weight="bold"))
        yield drawn


def _row(axis: "_Axis", answer: Answer, labels: tuple[str, str], y: float) -> tuple[str, str]:
    """The gains with which the claim would hold, and the measured one with its interval."""
    effect = answer.effect
    if effect is None:
        return "", ""
    zone = ""
    if effect.limit is not None:
        at = axis.place(effect.share(effect.limit))
        start, end = (at, _RIGHT) if effect.above else (_LEFT, at)
        zone = rectangle(start, y - _ROW / 2 + 1, end - start, _ROW - 2, PALE)
    words = text(_LEFT - 8, y + 4, fitting(labels[0], _LEFT - 12), text_anchor="end")
    words += text(_RIGHT + 8, y + 4, fitting(labels[1], WIDTH - _RIGHT - 8))
    if effect.gain is None:
        side = effect.above == (answer.holds is True) if effect.limit is not None else False
        x = _RIGHT - 8 if side else _LEFT + 8
        return zone, titled(answer.line, mark(answer.word, x, y), words)
    shares = [effect.share(each) for each in (effect.gain.low, effect.gain.middle, effect.gain.high)]
    low, middle, high = map(axis.place, shares)
    color = COLORS[answer.word] if answer.tested else FAINT
    bar = line(low, y, high, y, color, 1.6) if high > low else ""
    ends = [_arrow(low, -1, y, color)] * (shares[0] < axis.low) + [_arrow(high, 1, y, color)] * (shares[2] > axis.high)
    return zone, titled(answer.line, bar, *ends, mark(answer.word, middle, y), words)


def _arrow(x: float, side: int, y: float, color: str) -> str:
    """The end of an interval that goes on beyond the axis."""
    return f'<path d="M{x - 5 * side:.0f} {y - 3.5:.1f}l{5 * side} 3.5l{-5 * side} 3.5z" fill="{color}"/>'


def _labels(answer: Answer, answers: Sequence[Answer], network: Callable[[str], str]) -> tuple[str, str]:
    """What is compared; on which network and from how many seeds."""
    effects = [each.effect for each in answers if each.effect]
    effect = answer.effect
    if effect is None:
        return "", ""
    key = f"{effect.first.partition('=')[0].rpartition(' ')[2]}="
    words = f"{effect.first} / {effect.other.removeprefix(key)}"
    if len({each.metric for each in effects}) > 1:
        words = f"{column_of(effect.metric).head.removeprefix('best ').removeprefix('final ')}: {words}"
    if sum(_alike(each, answer) for each in answers) > 1:
        words += f" ({answer.experiments[0].partition('_')[2] or answer.experiments[0]})"
    networks = dict.fromkeys(map(network, answer.experiments))
    where = f"{len(answer.experiments)} networks" if len(networks) > 1 else next(iter(networks))
    seeds = "" if effect.gain is None or len(networks) > 1 else f", {effect.gain.seeds}"
    return words, f"{where}{seeds}"


def _alike(one: Answer, other: Answer) -> bool:
    """True if two answers compare the same in different experiments."""
    names = [each.effect and (each.effect.first, each.effect.other, each.effect.metric) for each in (one, other)]
    return names[0] == names[1] and len(one.experiments) == 1


class _Axis:
    """Gains as shares of the other's mean: linear around zero, logarithmic beyond."""

    def __init__(self, effects: Sequence[Effect]) -> None:
        shares = [
            effect.share(each)
            for effect in effects
            if effect.gain
            for each in (effect.gain.low, effect.gain.middle, effect.gain.high, effect.limit)
            if each is not None and math.isfinite(each)
        ]
        self.low = -self._end(max((-each for each in shares), default=0.0))
        self.high = self._end(max(shares, default=0.0))
        self._span = self._height(self.high) - self._height(self.low)

    def place(self, share: float) -> float:
        """Pixels of a gain from the left, at the edge if the axis does not reach it."""
        found = self._height(min(max(share, self.low), self.high)) - self._height(self.low)
        return _LEFT + (_RIGHT - _LEFT) * found / self._span

    def drawn(self, top: float, bottom: float) -> Iterator[str]:
        """Lines at its ticks, with names below."""
        named: list[float] = []
        for share in sorted({sign * each for each in _TICKS for sign in (-1, 1)}, key=abs):
            if self.low <= share <= self.high:
                x = self.place(share)
                yield line(x, top, x, bottom, GRAY if share == 0 else FAINT, 1.2 if share == 0 else 0.6)
                if all(abs(x - each) > _APART for each in named):
                    named.append(x)
                    name = f"{100 * share:+.0f}" if share else "0"
                    yield text(x, bottom + 13, name, text_anchor="middle", font_size=10)
        yield text(
            (_LEFT + _RIGHT) / 2, bottom + 27, "gain in % of the other's mean", text_anchor="middle", font_size=10
        )

    @staticmethod
    def _end(farthest: float) -> float:
        return next((each for each in _ENDS if farthest <= each), _ENDS[-1])

    @staticmethod
    def _height(share: float) -> float:
        beyond = math.log10(abs(share) / _LINEAR) if abs(share) > _LINEAR else 0.0
        return math.copysign(_SHARE * min(1.0, abs(share) / _LINEAR) + beyond, share)
