"""Events that repeat for ever, between some of which something computes."""

from dataclasses import dataclass

from pipetrain.program.event_graph import EventGraph, Indices

NO_TASK = -1


@dataclass(frozen=True)
class ComputingGraph:
    """Events, and which of their waits are computations, which take longer where many share a processor.

    Attributes:
        events: with the times of computations at full speed.
        tasks: of each edge, the number of what computes from its source to its target; `NO_TASK`: nothing.
    """

    events: EventGraph
    tasks: Indices
