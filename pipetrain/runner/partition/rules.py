"""The rules that say where a layer chain is cut into stages."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from typing_extensions import override

from pipetrain.engine.errors import ConfigError, check_whole, is_whole
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.cuts import balanced_cuts, unit_starts
from pipetrain.engine.models.ties import tied_weights
from pipetrain.engine.schedules.placement import Placement
from pipetrain.graph.layer_costs import LayerCost, WeightPasses
from pipetrain.runner.partition.process_cuts import process_balanced_cuts

Pairs = Sequence[tuple[int, int]]
"""Pairs (i, j), i < j, of layers."""

_WAYS_OUT = "model.untie=true gives each layer a copy, and a synchronous method, such as gpipe, keeps copies equal"


class PartitionRule(Protocol):
    """A way to cut a chain into stages."""

    name: ClassVar[str]
    """Name of the rule in the plan."""

    def cuts(self, chain: LayerChain, costs: Sequence[LayerCost], passes: WeightPasses, glued: Pairs) -> list[int]:
        """The first layer of every stage but the first, by the costs of layers and the passes over weights of a stage.

        Raises:
            ConfigError: the rule's settings do not fit this model, or a cut separates glued layers.
        """


@dataclass(frozen=True)
class Even(PartitionRule):
    """A number of stages whose slowest is as fast as possible by the estimated times; each has weights, if possible.

    Attributes:
        replicas: number of processes that share the minibatches of each stage, and so its time; (): one each.
        placement: the stages of each process, if some have several: the slowest process then counts.
    """

    stages: int
    replicas: tuple[int, ...] = ()
    placement: Placement | None = None
    name: ClassVar[str] = "even"

    @override
    def cuts(self, chain: LayerChain, costs: Sequence[LayerCost], passes: WeightPasses, glued: Pairs) -> list[int]:
        check_whole("partition.stages", self.stages, least=1)
        most = len(unit_starts(len(chain), glued))
        if self.stages > most:
            raise ConfigError(f"partition.stages={self.stages}: {_room(chain, glued, most)}")
        if self.stages == most:
            return unit_starts(len(chain), glued)[1:]
        counts = self.replicas or (1,) * self.stages
        by_stage = [[cost.at(each) / n for cost in costs] for each, n in zip(passes(self.stages), counts, strict=True)]
        weighted = [cost.parameters > 0 for cost in costs]
        if self.placement is not None:
            return process_balanced_cuts(by_stage, self.placement, glued, weighted)
        return balanced_cuts(by_stage, glued, weighted)


def _room(chain: LayerChain, glued: Pairs, most: int) -> str:
    names = sorted({name for i, j in glued for name in _shared_weights(chain, i, j)})
    shared = f" and shares {', '.join(names) or 'buffers'}" if most < len(chain) else ""
    room = f"the model has {_plural(len(chain), 'layer')}{shared}; at most {_plural(most, 'stage')}"
    return f"{room}; {_WAYS_OUT}" if names else room


@dataclass(frozen=True)
class Ppv(PartitionRule):
    """A cut after each of the given numbers of weight layers: Zhang & Abdelrahman's pipeline placement vector.

    Layers without weights that follow the last weight layer before a cut, such as a pooling, begin the next stage.
    """

    ppv: Sequence[int]
    stages: int | None = None
    name: ClassVar[str] = "ppv"

    @override
    def cuts(self, chain: LayerChain, costs: Sequence[LayerCost], passes: WeightPasses, glued: Pairs) -> list[int]:
        weighted = chain.weight_layers()
        _check("ppv", self.ppv, self.stages, count=len(weighted), noun="weight layer")
        cuts = [weighted[number - 1] + 1 for number in self.ppv]
        check_glued("ppv", list(self.ppv), cuts, chain, glued)
        return cuts


@dataclass(frozen=True)
class Explicit(PartitionRule):
    """The index of the first layer of every later stage, as given."""

    boundaries: Sequence[int]
    stages: int | None = None
    name: ClassVar[str] = "explicit"

    @override
    def cuts(self, chain: LayerChain, costs: Sequence[LayerCost], passes: WeightPasses, glued: Pairs) -> list[int]:
        _check("boundaries", self.boundaries, self.stages, count=len(chain), noun="layer")
        check_glued("boundaries", list(self.boundaries), list(self.boundaries), chain, glued)
        return list(self.boundaries)


def _check(setting: str, cuts: Any, stages: Any, count: int, noun: str) -> None:
    """Checks that a list of cuts rises within 1 and `count` - 1 and makes `stages` stages."""
    if not isinstance(cuts, list | tuple) or not all(map(is_whole, cuts)):
        raise ConfigError(f"partition.{setting}={cuts}: must be a list of whole numbers, such as [1]")
    assignment = f"partition.{setting}={list(cuts)}"
    if any(a >= b for a, b in itertools.pairwise(cuts)):
        raise ConfigError(f"{assignment}: must increase, such as {sorted(set(cuts))}")
    if cuts and not 1 <= cuts[0] <= cuts[-1] < count:
        room = f"numbers between 1 and {count - 1} work" if count > 1 else "only [], a single stage, works"
        raise ConfigError(f"{assignment}: the model has {_plural(count, noun)}; {room}")
    if stages is not None and stages != len(cuts) + 1:
        raise ConfigError(f"partition.stages={stages}: must be null or {len(cuts) + 1}, as in {assignment}")


def check_glued(setting: str, value: object, cuts: list[int], chain: LayerChain, glued: Pairs) -> None:
    """Raises a ConfigError if a cut of a setting's value separates layers that must be in one stage."""
    for cut in cuts:
        for i, j in glued:
            if i < cut <= j:
                weights = _shared_weights(chain, i, j)
                raise ConfigError(
                    f"partition.{setting}={value}: layers {i} ({chain.labels[i]}) and {j} ({chain.labels[j]}) "
                    f"share {', '.join(weights) or 'a buffer'} and must be in one stage"
                    f"{f'; {_WAYS_OUT}' if weights else ''}"
                )


def _shared_weights(chain: LayerChain, i: int, j: int) -> list[str]:
    return [name for name, layers in tied_weights(chain).items() if {i, j} <= set(layers)]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
