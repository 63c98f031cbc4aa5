"""Largest stable step sizes of one setting, in tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from papers.stability.checks import Check
from papers.stability.curves import Heatmap
from papers.stability.lemmas import delay_limit
from papers.stability.limits import STEPS, largest_stable_step
from papers.stability.quadratic import Quadratic, gamma_of_decay, matched_gamma

DELAYS = (1, 2, 5, 10, 20, 40, 80)
DISCREPANCIES = (-100.0, -20.0, -5.0, -1.0, 0.0, 1.0, 5.0, 20.0, 100.0)
"""In units of λ; the range is that of app. B.4."""
Row = dict[str, float]


@dataclass(frozen=True)
class Setting:
    """The quadratic model that the tables vary; by default with fig. 10's delays, Φ/Δ and τ_R in proportion to fig. 16.

    Attributes:
        curvature, discrepancy, tau_forward, tau_backward, momentum: those of the model, with momentum in one variant.
        tau_recompute: None: a third of the way from τ_B to τ_F.
        recompute_ratio: Φ/Δ.
        decay: D of γ = D^{1/(τ_F - τ_B)}; None: γ of eq. 14.

    Raises:
        ConfigError: see Quadratic and gamma_of_decay.
    """

    curvature: float = 1.0
    discrepancy: float = 5.0
    tau_forward: int = 40
    tau_backward: int = 10
    tau_recompute: int | None = None
    recompute_ratio: float = -0.5
    momentum: float = 0.9
    decay: float | None = None

    def __post_init__(self) -> None:
        for model in self.variants().values():
            self.with_t2(model, printed=False)

    @property
    def recompute(self) -> int:
        """τ_R, in updates, given or derived."""
        third = (self.tau_forward - self.tau_backward) // 3
        return self.tau_backward + third if self.tau_recompute is None else self.tau_recompute

    def variants(self) -> dict[str, Quadratic]:
        """The model without T2: plain, with momentum, with recomputation."""
        plain = Quadratic(self.tau_forward, self.tau_backward, curvature=self.curvature, discrepancy=self.discrepancy)
        recomputed = replace(
            plain, tau_recompute=self.recompute, recompute_discrepancy=self.recompute_ratio * self.discrepancy
        )
        return {"plain": plain, "momentum": replace(plain, momentum=self.momentum), "recompute": recomputed}

    def with_t2(self, model: Quadratic, *, printed: bool) -> Quadratic:
        """The model with T2 on top, its polynomial as printed or by the rule of § 3.2."""
        if self.decay is None:
            gamma = matched_gamma(model.tau_forward, model.tau_backward)
        else:
            gamma = gamma_of_decay(self.decay, model.tau_forward, model.tau_backward)
        return replace(model, gamma=gamma, printed=printed)

    def models(self) -> dict[str, Quadratic]:
        """Every variant without T2, with T2 as printed, and with T2 by the rule; `plain`, `plain_printed`, …"""
        models: dict[str, Quadratic] = {}
        for name, model in self.variants().items():
            models[name] = model
            models[f"{name}_printed"] = self.with_t2(model, printed=True)
            models[f"{name}_rule"] = self.with_t2(model, printed=False)
        return models

    def at_delay(self, tau_forward: int) -> "Setting":
        """The same with another τ_F, and τ_B and τ_R in proportion, rounded down."""
        backward, recompute = (tau * tau_forward // self.tau_forward for tau in (self.tau_backward, self.recompute))
        return replace(self, tau_forward=tau_forward, tau_backward=backward, tau_recompute=recompute)


def by_delay(setting: Setting) -> list[Row]:
    """A row for each τ_F: the delays, the largest stable step without discrepancy, and that of each model."""
    rows: list[Row] = []
    for tau in sorted({*DELAYS, setting.tau_forward}):
        at = setting.at_delay(tau)
        delays = {"tau_forward": tau, "tau_backward": at.tau_backward, "tau_recompute": at.recompute}
        aligned = largest_stable_step(replace(at.variants()["plain"], discrepancy=0.0))
        rows.append({**delays, "no_discrepancy": aligned, **_limits(at)})
    return rows


def by_discrepancy(setting: Setting) -> list[Row]:
    """A row for each Δ: the largest stable step of each model."""
    scaled = {delta * setting.curvature for delta in DISCREPANCIES}
    return [
        {"discrepancy": delta, **_limits(replace(setting, discrepancy=delta))}
        for delta in sorted({*scaled, setting.discrepancy})
    ]


def _limits(setting: Setting) -> Row:
    return {name: largest_stable_step(model) for name, model in setting.models().items()}


VARIANTS = ("plain", "momentum", "recompute")
FORMS = {"": "no T2", "_printed": "printed", "_rule": "rule"}


def delay_table(setting: Setting, rows: Sequence[Row]) -> Iterator[str]:
    """Largest stable steps, a line for each τ_F."""
    yield f"against delay, Δ = {setting.discrepancy:g}"
    keys = ("tau_forward", "tau_backward", "tau_recompute", "no_discrepancy")
    yield from _grid(rows, keys, ("τ_F", "τ_B", "τ_R", "Δ = 0"))


def discrepancy_table(setting: Setting, rows: Sequence[Row]) -> Iterator[str]:
    """Largest stable steps, a line for each Δ."""
    yield f"against discrepancy, τ_F = {setting.tau_forward}, τ_B = {setting.tau_backward}, τ_R = {setting.recompute}"
    yield from _grid(rows, ("discrepancy",), ("Δ",))


def heading(setting: Setting) -> Iterator[str]:
    """Heading with the settings that all columns share."""
    gamma = "eq. 14" if setting.decay is None else f"D = {setting.decay:g}"
    at = f"λ = {setting.curvature:g}, β = {setting.momentum:g}, Φ = {setting.recompute_ratio:g} Δ"
    yield f"Largest stable step size α of PipeMare's quadratic model; {at}, γ of T2 by {gamma}"
    yield "T2 `printed`: polynomials of app. B.4 and D.1, δ at t - τ_B and t - τ_R; `rule`: § 3.2, δ at t"


def _grid(rows: Sequence[Row], keys: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    yield " " * 10 * len(names) + "".join(f"  {' ' + name + ' ':─^28}" for name in VARIANTS)
    yield "".join(f"{name:>10}" for name in names) + "".join(f"{name:>10}" for name in FORMS.values()) * len(VARIANTS)
    models = [variant + form for variant in VARIANTS for form in FORMS]
    for row in rows:
        yield "".join(f"{row[key]:10.4g}" for key in keys) + "".join(f"{row[model]:10.4g}" for model in models)


def simulated_table(rows: Sequence[Row]) -> Iterator[str]:
    """Largest stable steps by roots next to those of the simulated recurrence."""
    yield f"the same setting, by roots and by simulating {STEPS:,} steps of the recurrence"
    models = ((variant, form) for variant in VARIANTS for form in FORMS.values())
    for (variant, form), row in zip(models, rows, strict=True):
        difference = row["simulated"] / row["roots"] - 1 if row["roots"] else 0.0
        yield f"{variant:>11} {form:8}{row['roots']:12.5g}{row['simulated']:12.5g}{difference:9.2%}"


def check_table(title: str, checks: Sequence[Check]) -> Iterator[str]:
    """A line for each statement of the paper: whether it holds, and what was measured."""
    yield title
    width = max((len(check.statement) for check in checks), default=0)
    for check in checks:
        verdict = "holds" if check.holds else "FAILS"
        yield f"  {verdict}  {check.subject:9} {check.statement:{width}}  {check.measured}"


def regression_table(heatmap: Heatmap) -> Iterator[str]:
    """Lemma 1 with the largest curvature next to the largest step size that did not diverge, for each τ."""
    size = f"largest curvature {heatmap.largest_curvature:.4g}, least loss {heatmap.least_loss:.4g}"
    yield f"Regression by delayed SGD, {heatmap.iterations:,} iterations; {size}"
    yield f"{'τ':>8}{'lemma 1':>10}  largest α tried that did not diverge"
    for row in regression_rows(heatmap):
        yield f"{row['tau']:8}{row['lemma_1']:10.4g}{row['largest']:10.4g}"


def regression_rows(heatmap: Heatmap) -> list[Row]:
    """The numbers of `regression_table`."""
    bounds = [delay_limit(tau, heatmap.largest_curvature) for tau in heatmap.taus]
    steps = zip(heatmap.taus, bounds, heatmap.largest_steps(), strict=True)
    return [{"tau": tau, "lemma_1": bound, "largest": largest} for tau, bound, largest in steps]
