"""Bytes that a worker sends for a sample (PipeDream, § 3.1: 2(m - 1)|w|/m for weights, 2a for a cut)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CommunicatedStage:
    """A stage with its replicas.

    Attributes:
        weight_bytes: of one copy of its weights.
        replicas: m.
        output_bytes: of a sample's activations that go to the next stage; 0 for the last one.
    """

    weight_bytes: int
    replicas: int = 1
    output_bytes: int = 0


def bytes_per_sample(stages: Sequence[CommunicatedStage], minibatch: int) -> float:
    """All that is communicated for one sample: gradients of replicated weights, activations and their gradients.

    Args:
        stages: of the pipeline; data parallelism is one stage.
        minibatch: samples of one worker's minibatch.
    """
    weights = sum(2 * (stage.replicas - 1) / stage.replicas * stage.weight_bytes for stage in stages)
    return weights / minibatch + sum(2 * stage.output_bytes for stage in stages)
