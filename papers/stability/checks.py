"""Lemmas 1 to 4 and the claims of app. B.4, each next to the result from the roots of the polynomials."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from papers.stability import lemmas
from papers.stability.limits import crossings, first_unstable, largest_stable_step, simulated_limit
from papers.stability.quadratic import Quadratic, matched_gamma, rule_matched_gamma

EXACT = 1e-9
"""Relative difference at which two ways to the same number count as one."""
SIMULATED = 2e-3
"""The same for a simulation."""
_DELAYS = (1, 2, 5, 10, 20, 40)
_SENSITIVITIES = (0.01, 0.1, 1.0, 5.0, 20.0, 100.0)


@dataclass(frozen=True)
class Check:
    """A statement of the paper, and whether the measurement supports it."""

    subject: str
    statement: str
    measured: str
    holds: bool


def lemma_checks() -> list[Check]:
    """Checks of what must hold: lemmas 1 to 4 and the closed forms in their proofs, for λ = 1."""
    return [*_lemma_1(), *_lemma_2(), *_lemma_3(), *_lemma_4()]


def _lemma_1() -> Iterator[Check]:
    pairs = [(tau, first_unstable(Quadratic(tau))) for tau in range(81)]
    off = max(abs(crossing.alpha / lemmas.delay_limit(tau) - 1) for tau, crossing in pairs)
    yield Check("lemma 1", "largest α = (2/λ) sin(π/(4τ+2)), τ = 0…80", f"relative difference {off:.0e}", off < EXACT)
    off = max(abs(crossing.angle - lemmas.delay_angle(tau)) for tau, crossing in pairs)
    yield Check("B.1, B.3", "the root leaves at angle π/(2τ+1)", f"difference {off:.0e}", off < EXACT)
    off = max(abs(simulated_limit(Quadratic(tau), 5000) / lemmas.delay_limit(tau) - 1) for tau in (0, 1, 10, 40))
    statement = "the recurrence, simulated, grows above that α, τ = 0, 1, 10, 40"
    yield Check("lemma 1", statement, f"relative difference {off:.0e}", off < SIMULATED)


def _lemma_2() -> Iterator[Check]:
    models = [Quadratic(*pair, discrepancy=delta) for pair in _pairs(_DELAYS) for delta in _SENSITIVITIES]
    limits = [(model, largest_stable_step(model)) for model in models]
    share = max(alpha / lemmas.discrepancy_bound(model) for model, alpha in limits)
    bound = "largest α ≤ min(2/(Δ(τ_F-τ_B)), lemma 1), Δ > 0"
    yield Check("lemma 2", bound, f"at most {share:.4f} of it, {len(limits)} cases", share <= 1)
    off = max(abs(alpha / lemmas.discrepancy_limit(model) - 1) for model, alpha in limits)
    yield Check("B.3", "largest α = the α(θ) of the proof", f"relative difference {off:.0e}", off < EXACT)


def _lemma_3() -> Iterator[Check]:
    models = [Quadratic(tau, momentum=beta) for tau in (0, *_DELAYS) for beta in (0.1, 0.5, 0.9, 0.99)]
    limits = [(model, largest_stable_step(model)) for model in models]
    share = max(alpha / lemmas.momentum_bound(model.tau_forward) for model, alpha in limits)
    bound = "largest α ≤ (4/λ) sin(π/(4τ+2)), 0 < β < 1"
    yield Check("lemma 3", bound, f"at most {share:.4f} of it, {len(limits)} cases", share <= 1)
    off = max(abs(alpha / lemmas.momentum_limit(model.tau_forward, model.momentum) - 1) for model, alpha in limits)
    yield Check("B.2", "largest α = the α(θ) of the proof", f"relative difference {off:.0e}", off < EXACT)


def _lemma_4() -> Iterator[Check]:
    for name, model_at in _families().items():
        pairs = [(model_at(tau), crossings(model_at(tau))[0]) for tau in (20, 40, 80, 160, 320)]
        share = max(at.distance / (lemmas.crossing_constant(model) * at.alpha) for model, at in pairs)
        alphas, distances = ([getattr(at, key) for _, at in pairs] for key in ("alpha", "distance"))
        holds = share <= 1 + EXACT and alphas[-1] < alphas[0] / 8 and distances[-1] < distances[0] / 8
        measured = f"α {alphas[0]:.3f} → {alphas[-1]:.4f}, |ω-1| {distances[0]:.3f} → {distances[-1]:.4f}"
        yield Check("lemma 4", f"α → 0 and ω → 1 as τ_F = 20 → 320: {name}", measured, holds)


def _families() -> dict[str, Callable[[int], Quadratic]]:
    """The models of § 3 with τ_B = τ_F/4, by τ_F."""

    def t2(tau: int, *, printed: bool) -> Quadratic:
        return Quadratic(tau, tau // 4, discrepancy=5.0, gamma=matched_gamma(tau, tau // 4), printed=printed)

    return {
        "eq. 3": Quadratic,
        "eq. 5, Δ = 5": lambda tau: Quadratic(tau, tau // 4, discrepancy=5.0),
        "T2 as printed": lambda tau: t2(tau, printed=True),
        "T2 by the rule": lambda tau: t2(tau, printed=False),
    }


def claim_checks() -> list[Check]:
    """Checks of what app. B.4 claims of T2, for its polynomial as printed and for that of the rule of § 3.2."""
    checks: list[Check] = []
    for printed in (True, False):
        checks += [_taylor(matched_gamma, "γ of eq. 14", printed=printed), _widens(printed=printed)]
    checks.append(_taylor(rule_matched_gamma, "γ = 1-2/(τ_F+τ_B+1)", printed=False))
    return checks


def _form(*, printed: bool) -> str:
    return "as printed" if printed else "by the rule"


def _taylor(gamma_of: Callable[[int, int], float], gamma: str, *, printed: bool) -> Check:
    largest = max(abs(taylor_slope(pair, gamma_of(*pair), printed=printed)) for pair in _pairs(_DELAYS))
    statement = f"Δ drops out of p''(1) with {gamma}, {_form(printed=printed)}"
    return Check("B.4", statement, f"|∂p''(1)/∂(αΔ)| ≤ {largest:.3g}", largest < EXACT)


def taylor_slope(pair: tuple[int, int], gamma: float, *, printed: bool) -> float:
    """∂p''(1)/∂(αΔ) of the polynomial with T2 for (τ_F, τ_B) (app. B.4)."""
    with_t2 = Quadratic(*pair, gamma=gamma, printed=printed)
    difference = replace(with_t2, discrepancy=1.0).forced() - with_t2.forced()
    return float(difference.deriv(2)(1.0))


def _widens(*, printed: bool) -> Check:
    """Check that T2 with γ of eq. 14 never makes the largest stable step smaller, for Δ > 0."""
    cases, worse = 0, []
    for pair in _pairs(_DELAYS):
        for delta in _SENSITIVITIES:
            without = Quadratic(*pair, discrepancy=delta)
            corrected = replace(without, gamma=matched_gamma(*pair), printed=printed)
            cases += 1
            if largest_stable_step(corrected) < largest_stable_step(without) * (1 - EXACT):
                worse.append((*pair, delta))
    first = f", first at τ_F, τ_B, Δ = {', '.join(f'{value:g}' for value in worse[0])}" if worse else ""
    measured = f"smaller in {len(worse)} of {cases} cases{first}"
    statement = f"T2 with γ of eq. 14 widens the range for Δ > 0, {_form(printed=printed)}"
    return Check("B.4", statement, measured, not worse)


def _pairs(delays: tuple[int, ...]) -> list[tuple[int, int]]:
    """(τ_F, τ_B) with τ_B = 0, about a quarter and one below τ_F."""
    return [(forward, backward) for forward in delays for backward in sorted({0, forward // 4, forward - 1})]
