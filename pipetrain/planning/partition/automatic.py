"""Partitions by the times of a profile."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from torch import nn
from typing_extensions import override

from pipetrain.engine.models.chain import LayerChain
from pipetrain.graph.layer_costs import FLOPS_PER_SECOND, LayerCost, WeightPasses, no_passes
from pipetrain.planning.profile.profile import Profile, ProfiledLayer, ProfiledWeight, renumber_shared
from pipetrain.runner.partition.rules import Pairs, PartitionRule
from pipetrain.runner.partition.run_plan import Plan

AUTO = "auto"


@dataclass(frozen=True)
class PlannedPartition(PartitionRule):
    """The planned cuts, and the profiled times of the stages.

    Attributes:
        boundaries: the first layer of every stage but the first.
        seconds: of each stage: forward, backward, and the part of the update that all stages have in common.
    """

    boundaries: Sequence[int]
    seconds: Sequence[float]
    replicas: tuple[int, ...]
    name: ClassVar[str] = AUTO
    where: ClassVar[str] = "partition=auto"

    @override
    def cuts(self, chain: LayerChain, costs: Sequence[LayerCost], passes: WeightPasses, glued: Pairs) -> list[int]:
        return list(self.boundaries)

    def timed(self, plan: Plan) -> Plan:
        """The plan of these cuts with measured times instead of estimates."""
        pairs = zip(plan.stages, self.seconds, strict=True)
        return replace(plan, stages=[replace(stage, estimated_seconds=seconds) for stage, seconds in pairs])


def merge_layers(profile: Profile, starts: Sequence[int]) -> Profile:
    """The profile of a chain with the layers from each start to the next as one: no cut comes between them."""
    parts = [range(*bounds) for bounds in pairwise([*starts, len(profile.layers)])]
    edges = tuple((i, i + 1) for i in range(len(parts) - 1))
    places = {layer: i for i, part in enumerate(parts) for layer in part}
    return replace(
        profile,
        layers=tuple(
            _merged([profile.layers[i] for i in part], weight_bytes=profile.weight_bytes_of(part)) for part in parts
        ),
        edges=edges,
        shared_weights=renumber_shared(profile.shared_weights, places),
    )


def _merged(layers: Sequence[ProfiledLayer], weight_bytes: int) -> ProfiledLayer:
    def known(name: str) -> bool:
        return any(getattr(layer, name) is not None for layer in layers)

    return ProfiledLayer(
        label=layers[0].label,
        forward_s=sum(layer.forward_s for layer in layers),
        backward_s=sum(layer.backward_s for layer in layers),
        output_bytes=layers[-1].output_bytes,
        weight_bytes=weight_bytes,
        activation_bytes=sum(layer.activation_bytes for layer in layers),
        shared_bytes=layers[0].shared_bytes,
        weights=_weights_of(layers),
        weight_gradient_s=sum(layer.of_weights_s for layer in layers) if known("weight_gradient_s") else None,
        put_aside=sum(layer.put_aside_bytes for layer in layers) if known("put_aside") else None,
    )


def _weights_of(layers: Sequence[ProfiledLayer]) -> tuple[ProfiledWeight, ...] | None:
    """The weights of layers that become one; None if a layer's weights are unknown."""
    held = [layer.weights for layer in layers if layer.weights is not None]
    return tuple(dict.fromkeys(weight for each in held for weight in each)) if len(held) == len(layers) else None


def stages_of_profile(
    rule: PartitionRule, profile: Profile, *, shares_weights: bool = False
) -> tuple[tuple[int, ...], ...]:
    """The layers of each stage; `even` balances the profile's times, as there is no model to estimate others of.

    Args:
        rule: where the model is cut.
        profile: of its layers.
        shares_weights: True if stages may hold copies of one weight.

    Raises:
        ConfigError: the rule cannot hold for these layers.
    """
    costs = [
        LayerCost(
            label=layer.label,
            parameters=layer.weight_bytes,
            flops=round(layer.compute_s * FLOPS_PER_SECOND),
            bytes_moved=0,
            output_bytes=layer.output_bytes,
            memory_bytes=layer.weight_bytes + layer.activation_bytes,
            weight_bytes=layer.weight_bytes,
            trainable_bytes=layer.trainable_bytes,
        )
        for layer in profile.layers
    ]
    chain = _chain(profile)
    ends = [0, *rule.cuts(chain, costs, no_passes, chain.tied(buffers_alone=shares_weights)), len(costs)]
    return tuple(tuple(range(first, last)) for first, last in pairwise(ends))


def _chain(profile: Profile) -> LayerChain:
    """A chain of layers without a forward; one that carries weights has a bias of one number, and all tied weights."""
    layers = [nn.ParameterList([nn.Parameter()] if _carries_weight(layer) else []) for layer in profile.layers]
    module = nn.Module()
    for shared in profile.ties:
        weight, weights = nn.Parameter(), profile.shared_by(shared)
        unnamed = f"a weight of {profile.layers[shared[0]].label} (layers {', '.join(map(str, shared))})"
        _register(module, weights[0].name if weights else unnamed, weight)
        for i in shared:
            layers[i].append(weight)
    module.add_module("layers of the profile", nn.ModuleList(layers))
    counts = Counter(layer.label for layer in profile.layers)
    labels = [f"{each.label}#{i}" if counts[each.label] > 1 else each.label for i, each in enumerate(profile.layers)]
    return LayerChain(module, list(layers), labels)


def _carries_weight(layer: ProfiledLayer) -> bool:
    return bool(layer.weight_bytes) if layer.carries_weight is None else layer.carries_weight


def _register(module: nn.Module, name: str, weight: nn.Parameter) -> None:
    """Gives a weight its name in the whole model, such as `decoder.embedding.weight`."""
    *owners, last = name.split(".")
    for owner in owners:
        if owner not in dict(module.named_children()):
            module.add_module(owner, nn.Module())
        module = module.get_submodule(owner)
    module.register_parameter(last, weight)
