"""The run that is recorded, and what is known of its earlier part."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pipetrain.tracking.records import Record
from pipetrain.tracking.run_directory import RunDirectory


@dataclass(frozen=True)
class RecordedRun:
    """The run that is recorded.

    Attributes:
        directory: where.
        steps_per_epoch: minibatches of an epoch.
        samples: those of a step's minibatch; steps count from 0.
        rates: the learning rates of a step, counted from 0, as fields of its record.
        every_steps: steps between records.
        simulated: whether all stages share this process, so that the wall time is the simulator's.
        counts_tokens: whether what the loss counts are tokens.
        config: the configuration, resolved.
        lower_is_better: the names of metrics, beside the loss and the perplexity, that fall as the model improves.
        hyperparameters: what was set, by name on the command line.
    """

    directory: RunDirectory
    steps_per_epoch: int
    samples: Callable[[int], int]
    rates: Callable[[int], Record]
    every_steps: int = 1
    simulated: bool = False
    counts_tokens: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    lower_is_better: Sequence[str] = ()
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EarlierSteps:
    """What a checkpoint holds of the record of the steps before it.

    Attributes:
        progress: as `Recorder.progress` gave it, and the `step`.
        history: as `Recorder.history` gave it.
    """

    progress: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, Tensor] = field(default_factory=dict)
