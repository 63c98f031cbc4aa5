"""Basis rotation: how much slower a deeper asynchronous pipeline learns, by optimizer."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from papers.claims import Contrast, ContrastClaim, Rule
from papers.paper import Paper

_METRIC = "target_steps"
_DEPTHS = (1, 2, 4, 8)
_BASES = [
    f"source={source} geometry={geometry}" for source in ("second", "first") for geometry in ("bilateral", "unilateral")
]


def _slowdown(experiment: str, *, depth: int = 8, basis: str = "") -> Contrast:
    """Steps to a loss with so many stages over those with one."""
    return experiment, f"{basis} stages={depth}".strip(), f"{basis} stages=1".strip()


def _rotated(basis: str) -> Contrast:
    return _slowdown("rotation", basis=basis)


_SECOND, _SECOND_ONE_SIDE, _FIRST, _FIRST_ONE_SIDE = map(_rotated, _BASES)
_RULES: Mapping[str, Sequence[Rule]] = {
    "depth_slows": [
        ContrastClaim(_METRIC, _slowdown("adamw", depth=more), _slowdown("adamw", depth=less))
        for less, more in pairwise(_DEPTHS)
    ],
    "correction_helps": [ContrastClaim(_METRIC, _slowdown("adamw"), _slowdown("corrected"))],
    "rotation_helps": [ContrastClaim(_METRIC, _slowdown(each), _SECOND) for each in ("adamw", "corrected")],
    "second_over_first": [
        ContrastClaim(_METRIC, _FIRST, _SECOND),
        ContrastClaim(_METRIC, _FIRST_ONE_SIDE, _SECOND_ONE_SIDE),
    ],
    "bilateral_over_unilateral": [
        ContrastClaim(_METRIC, _SECOND_ONE_SIDE, _SECOND),
        ContrastClaim(_METRIC, _FIRST_ONE_SIDE, _FIRST),
    ],
}


PAPER = Paper(
    name="basis_rotation",
    citation="Jung, Shin, Lee: Mitigating Staleness in Asynchronous Pipeline Parallelism via Basis Rotation, ICML 2026 "
    "(arXiv 2602.03515)",
    provenance="The optimizer and its settings are from the authors' code, the claims from the abstract, and the other "
    "numbers from a summary, because the paper itself was not available.",
    rules=_RULES,
)
