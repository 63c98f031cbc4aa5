"""What all stages that a graph could be cut into would keep, at once."""

import numpy as np

from pipetrain.planner.cut_states import CutStates, Table
from pipetrain.planner.memory import MemoryModel, StagePlace, StageSizes


def memory_table(states: CutStates, memory: MemoryModel, place: StagePlace) -> Table:
    """At [first state, last state], the peak bytes of a stage between the two."""
    inputs, entering = (
        np.where(states.follows, sizes[:, np.newaxis], 0.0) for sizes in (states.sent_bytes, states.entering_bytes)
    )
    activations = states.between(states.activation_bytes) + entering
    return memory.stage_bytes(place, StageSizes(states.stage_weight_bytes, activations, inputs))
