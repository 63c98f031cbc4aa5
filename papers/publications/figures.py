"""The papers' figures that need no training."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipetrain.runner.terminal.style import BLUE, GRAY, ORANGE, figure

Curves = Mapping[str, Sequence[float]]
"""Label -> values."""


def draw_stages(path: Path, without: Sequence[int], kept: Sequence[int]) -> None:
    """Bars of the activations of each stage without recomputation, and in front of them what it leaves."""
    stages = range(1, len(kept) + 1)
    with figure(path, (6.4,), 3.0) as (panel,):
        panel.bar(stages, without, color=GRAY, alpha=0.45, label="without recomputation")
        panel.bar(stages, kept, color=BLUE, width=0.5, label="with recomputation")
        panel.set(xlabel="stage", ylabel="activations, microbatches", xticks=list(stages))
        panel.grid(axis="x", visible=False)
        panel.legend()


def draw_increase(path: Path, sizes: Sequence[int], panels: Mapping[str, Curves]) -> None:
    """Increase of memory against the size of a minibatch, a panel for each network."""
    with figure(path, (3.1,) * len(panels), 2.9) as axes:
        for panel, (title, curves) in zip(axes, panels.items(), strict=True):
            for (label, values), color in zip(curves.items(), (ORANGE, BLUE), strict=True):
                panel.plot(sizes, values, color=color, marker="o", markersize=3, label=label)
            panel.set(title=title, xlabel="minibatch size", xscale="log", ylim=(0, None))
            panel.set_xticks(sizes[::2], [str(size) for size in sizes[::2]])
            panel.minorticks_off()
        axes[0].set_ylabel("increase of memory, %")
        axes[0].legend()
