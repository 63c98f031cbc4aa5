"""Basis rotation: how much slower a deeper asynchronous pipeline learns, by optimizer."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from papers.claims import Contrast, ContrastClaim, Rule
from papers.paper import Finding, Paper

_METRIC = "loss_steps"
_DEPTHS = (1, 2, 8)


def _slowdown(experiment: str, source: str = "", *, depth: int = 8) -> Contrast:
    """Steps to a loss with so many stages over those with one."""
    basis = f"source={source} " if source else ""
    return experiment, f"{basis}stages={depth}", f"{basis}stages=1"


_SECOND, _FIRST = _slowdown("rotation", "second"), _slowdown("rotation", "first")
_SECOND_ONE_SIDE, _FIRST_ONE_SIDE = _slowdown("unilateral", "second"), _slowdown("unilateral", "first")
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
    short="Basis rotation",
    citation="Jung, Shin, Lee: Mitigating Staleness in Asynchronous Pipeline Parallelism via Basis Rotation, ICML 2026 "
    "(arXiv 2602.03515)",
    about="AdamW in a basis that is rotated with the curvature is said to tolerate the delays of a deep pipeline.",
    findings=(
        Finding(
            "Depth slows PipeDream with AdamW down, and less so in a rotated basis; bases of both sides are better "
            "than those of one.",
            {"depth_slows": "seen", "rotation_helps": "seen", "bilateral_over_unilateral": "seen"},
        ),
        Finding(
            "Whether learning rates by delay help, and which moments are better, is undecided.",
            {"correction_helps": "undecided", "second_over_first": "undecided"},
        ),
    ),
    provenance="The optimizer and its settings are from the authors' code, the claims from the abstract, and the other "
    "numbers from a summary, because the paper itself was not available. It reports, with 32 stages, slowdowns of 5.81 "
    "for PipeDream and 4.24 for PipeDream-LR; of 1.27 for bases of second moments on both sides and 1.66 on one; and "
    "of 1.77 and 2.55 for bases of first moments. The tables below count steps to a smoothed training loss. At the "
    "small scale it is 2.8, a value that was set after the runs, because with eight stages none reaches the loss that "
    "one stage has after 70 % of its steps, which is the target at full scale. 2.8 is above the entropy of pairs of "
    "characters: it compares the first part of training.",
    rules=_RULES,
)
