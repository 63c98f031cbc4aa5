"""Callbacks of an executor."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from pipetrain.engine.executors.admission_gate import AdmissionGate
from pipetrain.engine.losses import StepLoss
from pipetrain.engine.program.trace import Trace
from pipetrain.engine.schedules import Operation

OnStep = Callable[[int, StepLoss], None]
"""Called on the last stage after each update with (minibatch since the start of the run, its loss)."""
Around = Callable[[str], AbstractContextManager[None]]
"""A context around something that takes time, given its description."""


@dataclass(frozen=True)
class RunHooks:
    """Callbacks of a run.

    Attributes:
        on_step: called with the loss of each minibatch, in the process of the last stage.
        on_operation: called with a stage of this process and each of its operations before this starts.
        on_progress: called with a description of other work before it starts.
        waiting: context around each wait for another process.
        computing: context around each forward that torch's library starts.
        trace: records the times of operations; None for no trace.
        gate: admits each minibatch of a training interval.
    """

    on_step: OnStep = lambda _minibatch, _loss: None
    on_operation: Callable[[int, Operation], None] = lambda _stage, _operation: None
    on_progress: Callable[[str], None] = lambda _description: None
    waiting: Around = lambda _description: nullcontext()
    computing: Around = lambda _description: nullcontext()
    trace: Trace | None = None
    gate: AdmissionGate = field(default_factory=AdmissionGate)
