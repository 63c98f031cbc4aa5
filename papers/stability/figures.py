"""PipeMare's figs 5, 6, 10 and 16 from their curves."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from papers.stability import curves
from papers.stability.curves import PRINTED, RULE, Curves, Heatmap
from papers.stability.lemmas import delay_limit
from papers.stability.limits import Floats
from pipetrain.runner.terminal.style import BLUE, GRAY, GREEN, INK, LADDER, ORANGE, RED, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_LOOKS: dict[str, dict[str, Any]] = {
    "no discrepancy": {"color": GREEN, "label": "no discrepancy"},
    "discrepancy": {"color": BLUE, "label": "discrepancy (Δ = 5)"},
    "no T2": {"color": BLUE, "label": "without T2"},
    "recompute": {"color": BLUE, "label": "discrepancy, recompute"},
    "no recompute": {"color": GRAY, "label": "discrepancy, no recompute (Φ = 0)"},
    RULE: {"color": ORANGE, "label": r"T2 by the rule, $\delta_t$"},
    PRINTED: {"color": RED, "label": r"T2 as printed, $\delta_{t-\tau_B}$", "linestyle": (0, (4, 1.6))},
}


def draw_fig05(path: Path, quadratic: Curves, heatmap: Heatmap | None) -> None:
    """Draws fig. 5: losses of the quadratic model for several τ and, with a heat map, those of a regression."""
    with figure(path, (4.6,) if heatmap is None else (4.6, 5.0)) as panels:
        _losses(panels[0], quadratic)
        panels[0].set_title(rf"(a) Quadratic model, $\lambda$ = 1, $\alpha$ = {curves.ALPHA_5A:g}")
        if heatmap is not None:
            _heatmap(panels[1], heatmap)


def draw_fig06(path: Path, losses: Curves, radii: Curves) -> None:
    """Draws fig. 6: losses for several Δ; spectral radii without discrepancy, with it, and with T2."""
    with figure(path, (4.6, 4.6)) as (left, right):
        _losses(left, losses)
        left.set_title(rf"(a) $\tau_F$ = 10, $\tau_B$ = 6, $\lambda$ = 1, $\alpha$ = {curves.ALPHA_6A:g}")
        _radii(right, radii)
        right.set_title("(b) The same delays, T2 with D = 0.1")


def draw_fig10(path: Path, limits: Curves) -> None:
    """Draws fig. 10: the largest stable step over Δ, without T2 and with both forms of it; Δ near 0 again, larger."""
    with figure(path, (5.0, 4.2), 3.8) as (whole, middle):
        for name, values in limits.lines.items():
            near = np.abs(limits.x) <= 10
            whole.plot(limits.x, values, **_LOOKS[name])
            middle.plot(limits.x[near], values[near], **_LOOKS[name])
            _mark(middle, 5.0, float(np.interp(5.0, limits.x, values)), _LOOKS[name]["color"])
        whole.set_yscale("log")
        whole.set_title(r"Largest stable step, $\tau_F$ = 40, $\tau_B$ = 10, $\lambda$ = 1, $\gamma$ of eq. 14")
        whole.legend(loc="upper right")
        middle.set_ylim(0, 0.06)
        middle.set_xticks(range(-10, 11, 5))
        middle.set_title("Near Δ = 0, linear axis")
        for panel in (whole, middle):
            panel.set_xlabel("discrepancy sensitivity Δ")
            panel.set_ylabel("step size α")
            panel.margins(x=0)


def _mark(panel: "Axes", x: float, y: float, color: str) -> None:
    panel.plot([x], [y], "o", color=color, markersize=5)
    panel.annotate(f"{y:.4f}", (x, y), (6, 5), textcoords="offset points", color=color)


def draw_fig16(path: Path, radii: Curves) -> None:
    """Draws fig. 16: spectral radii with recomputation."""
    with figure(path, (6.4,), 3.9) as (panel,):
        _radii(panel, radii, r"T2 as printed, $\delta_{t-\tau_B}$, $\delta_{t-\tau_R}$")
        panel.set_title(
            r"$\Delta$ = 10, $\Phi$ = $-$5, $\tau_F$ = 10, $\tau_B$ = 1, $\tau_R$ = 4, $\lambda$ = 1, T2 with D = 0.1"
        )


FIGURES: dict[str, Callable[[Path], None]] = {
    "fig5": lambda path: draw_fig05(path, curves.fig5a(), None),
    "fig6": lambda path: draw_fig06(path, curves.fig6a(), curves.fig6b()),
    "fig10": lambda path: draw_fig10(path, curves.fig10()),
    "fig16": lambda path: draw_fig16(path, curves.fig16()),
}
"""Figure -> what draws it, fig. 5 without the regression of 5(b), which needs data."""


def draw_part(name: str, folder: Path) -> list[str]:
    """Draws one of the figures into a folder; returns the line that says so."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    FIGURES[name](path)
    more = "; python -m papers stability --data FILE draws 5(b), too" if name == "fig5" else ""
    return [f"written to {path}{more}"]


def _losses(panel: "Axes", losses: Curves) -> None:
    for color, (name, values) in zip(LADDER, losses.lines.items(), strict=True):
        panel.plot(losses.x[1:], np.maximum(values[1:], 1e-6), color=color, label=name, linewidth=1.3)
    panel.set_yscale("log")
    panel.set_ylim(bottom=1e-4)
    panel.set_xlabel("iteration")
    panel.set_ylabel(r"loss $\lambda w^2/2$")
    panel.margins(x=0)
    panel.legend(loc="upper left", ncols=2)


def _radii(panel: "Axes", radii: Curves, printed: str = _LOOKS[PRINTED]["label"]) -> None:
    panel.axhline(1.0, color=INK, linewidth=0.8)
    for name, values in radii.lines.items():
        look = {**_LOOKS[name], "label": printed} if name == PRINTED else _LOOKS[name]
        panel.plot(radii.x, values, **look)
    panel.set_xscale("log")
    panel.set_xlabel("step size α")
    panel.set_ylabel("largest root magnitude")
    panel.margins(x=0)
    panel.set_ylim(0.9, 1.5)
    panel.legend(loc="upper left")


def _heatmap(panel: "Axes", heatmap: Heatmap) -> None:
    from matplotlib.colors import LogNorm

    excess = np.ma.masked_where(heatmap.diverged, np.maximum(heatmap.losses - heatmap.least_loss, 1e-12))
    norm = LogNorm(max(float(excess.min()), 1e-4), heatmap.first_loss)
    panel.set_facecolor(RED)
    rows = np.arange(len(heatmap.taus) + 1) - 0.5
    mesh = panel.pcolormesh(rows, _edges(heatmap.alphas), excess.T, cmap="Blues_r", norm=norm)
    bound = [delay_limit(tau, heatmap.largest_curvature) for tau in heatmap.taus]
    panel.plot(range(len(bound)), bound, color=INK, marker=".", label="lemma 1 with the largest curvature")
    panel.set_yscale("log")
    panel.set_ylim(heatmap.alphas[0], heatmap.alphas[-1])
    panel.set_xticks(range(len(bound)), [str(tau) for tau in heatmap.taus])
    panel.set_xlabel("delay τ")
    panel.set_ylabel("step size α")
    panel.grid(visible=False)
    panel.set_title(f"(b) Linear regression, {heatmap.iterations:,} iterations")
    panel.legend(loc="lower left", frameon=True, framealpha=0.9, edgecolor="none")
    panel.figure.colorbar(mesh, ax=panel, label="loss above the minimum; red: diverged")


def _edges(centers: Floats) -> Floats:
    """The borders of cells around centers that are evenly spaced on a logarithmic axis."""
    half = np.sqrt(centers[1] / centers[0])
    return np.append(centers / half, centers[-1] * half)
