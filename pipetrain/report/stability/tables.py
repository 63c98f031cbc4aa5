"""What `pipetrain stability` prints: tables of step sizes, and checks beside what was measured."""

from collections.abc import Iterator, Sequence

from pipetrain.theory.stability.checks import Check
from pipetrain.theory.stability.curves import Heatmap
from pipetrain.theory.stability.lemmas import delay_limit
from pipetrain.theory.stability.recurrence import STEPS
from pipetrain.theory.stability.tables import Row, Setting

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
    """What all columns have in common."""
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
    """Largest stable steps by roots beside those of the simulated recurrence."""
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
    """Lemma 1 with the largest curvature beside the largest step size that did not diverge, for each τ."""
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
