"""Claims about what was trained or timed, as orders of measured means."""

from dataclasses import dataclass
from typing import ClassVar

from pipetrain.reproduce.controls import Control
from pipetrain.reproduce.difference import Relation


@dataclass(frozen=True)
class Order:
    """One mean against others, in an experiment and its companions.

    Attributes:
        experiment: the preset; those whose names begin with its own and `_` belong to it.
        first: the name of a group.
        relation: of its mean to those of the others.
        others: the names of groups.
        metric: a column; by default what the experiment is ranked by. A predicted one is that of simulated pipelines;
            others have a measured one in its place.
        against: the experiment of the others, where it is another one.
        within: how much worse one that is no worse may be, as the paper says it; None: what `Difference` takes.
        floor: a value up to which a method that fails has learned nothing; None: as the losses tell.
        factor: by how much one that is better is so, as the paper says it.
        full: whether the small scale cannot tell.
        controls: what experiments have to show first.
    """

    experiment: str
    first: str
    relation: Relation
    others: tuple[str, ...]
    metric: str | None = None
    against: str | None = None
    within: float | None = None
    floor: float | None = None
    factor: float | None = None
    full: bool = False
    controls: tuple[Control, ...] = ()

    @property
    def experiments(self) -> tuple[str, ...]:
        """The presets that it is about."""
        return (self.experiment,)


@dataclass(frozen=True)
class Average:
    """The ratio of two throughputs, averaged over networks, of which each may have been timed but once.

    Attributes:
        experiments: presets, one for each network; two that were run are the least.
        first: the name of a group.
        relation: of its throughput to the other's; `BETTER` or `LIKE`.
        other: the name of a group.
        metric: a column.
        factor: by how much one that is better is so on average, as the paper says it.
    """

    experiments: tuple[str, ...]
    first: str
    relation: Relation
    other: str
    metric: str
    factor: float | None = None
    full: ClassVar[bool] = False


@dataclass(frozen=True)
class Growth:
    """A ratio of two groups that rises from one experiment to the next; the small scale has one model for them all.

    Attributes:
        experiments: presets.
        first: the name of a group.
        other: that of the one that it is compared to.
        metric: a column.
    """

    experiments: tuple[str, ...]
    first: str
    other: str
    metric: str
    full: ClassVar[bool] = True


Rule = Order | Average | Growth
"""How the results of experiments decide on a claim."""
