"""A profile in the place of its model, so that the partition rules of a run can cut it."""

from collections import Counter
from itertools import pairwise

from torch import nn

from pipetrain.models.chain import LayerChain
from pipetrain.planner.estimate import FLOPS_PER_SECOND, LayerCost, no_passes
from pipetrain.planner.partition_rules import PartitionRule
from pipetrain.planner.profile import Profile, ProfiledLayer


def stages_of_profile(rule: PartitionRule, profile: Profile) -> tuple[tuple[int, ...], ...]:
    """The layers of each stage; `even` balances the profile's times, as there is no model to estimate others of.

    Raises:
        ConfigError: the rule cannot hold for these layers.
    """
    costs = [_cost(layer) for layer in profile.layers]
    ends = [0, *rule.cuts(_chain(profile), costs, no_passes, []), len(costs)]
    return tuple(tuple(range(first, last)) for first, last in pairwise(ends))


def _cost(layer: ProfiledLayer) -> LayerCost:
    return LayerCost(
        label=layer.label,
        parameters=layer.weight_bytes,
        flops=round(layer.compute_s * FLOPS_PER_SECOND),
        bytes_moved=0,
        output_bytes=layer.output_bytes,
        memory_bytes=layer.weight_bytes + layer.activation_bytes,
        weight_bytes=layer.weight_bytes,
    )


def _chain(profile: Profile) -> LayerChain:
    """Layers without a forward; one that has weights is a bias of one number."""
    layers: list[nn.Module] = [_Bias() if layer.weight_bytes else nn.Identity() for layer in profile.layers]
    counts = Counter(layer.label for layer in profile.layers)
    labels = [f"{each.label}#{i}" if counts[each.label] > 1 else each.label for i, each in enumerate(profile.layers)]
    return LayerChain(nn.Sequential(*layers), layers, labels)


class _Bias(nn.ParameterList):
    def __init__(self) -> None:
        super().__init__([nn.Parameter()])
