"""The job of a run's processes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipetrain.data.fingerprint import Fingerprint
from pipetrain.data.ranges import LabelRange, TokenRange
from pipetrain.engine.schedules import Placement
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.run_plan import Plan
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint import store
from pipetrain.runner.training.checkpoint.initial_weights import InitialWeights
from pipetrain.runner.training.components.machine import device_at
from pipetrain.runner.training.timetable import Timetable


@dataclass(frozen=True)
class Job:
    """All that preflight has found out about a run; pickled to each worker.

    Attributes:
        placement: which process has which stages.
        threads: intra-op threads of each process.
        resume: the checkpoint to continue from.
        initial_weights: what the stages start from; None if that is a checkpoint, or they are drawn.
        finished: True if nothing is left to run or to write.
        labels: range of the labels that the model can learn; None if the loss is not over classes.
        tokens: range of the tokens that the model knows; None if it looks none up.
        takes_gradient: first layer behind a cut -> True for each crossing tensor that takes a gradient; empty if all
            messages are plain.
        lower_is_better: names of further metrics that fall as the model improves.
        data: fingerprint of each split, as this process read it.
        provenance: origin of the run, for the summary.
        notes: lines for the user before the run starts.
    """

    settings: Settings
    run: RunDirectory
    plan: Plan
    timetable: Timetable
    placement: Placement
    threads: int
    device: str
    resume: Path | None = None
    initial_weights: InitialWeights | None = None
    finished: bool = False
    labels: LabelRange | None = None
    tokens: TokenRange | None = None
    takes_gradient: Mapping[int, Sequence[bool]] = field(default_factory=dict)
    lower_is_better: tuple[str, ...] = ()
    data: Mapping[str, Fingerprint] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    sweep: Path | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def num_stages(self) -> int:
        """Number of stages in all processes together."""
        return len(self.plan.stages)

    @property
    def stage_devices(self) -> list[str]:
        """The device of each stage."""
        if self.device == "cpu":
            return ["cpu"] * self.num_stages
        simulated = self.settings.executor.simulated
        ranks = [0 if simulated else self.placement.process_of(r) for r in range(self.num_stages)]
        return [str(device_at(self.device, rank)) for rank in ranks]

    @property
    def start_step(self) -> int:
        """Number of steps that were done when the run starts or resumes."""
        return 0 if self.resume is None else int(store.load_progress(self.resume)["step"])

    @property
    def resumes_itself(self) -> bool:
        """True if the checkpoint to continue from is in this run directory."""
        return self.resume is not None and self.resume.parent == self.run.checkpoints.resolve()

    def head(self) -> dict[str, Any]:
        """First fields of the summary: the choices, and the numbers of stages and replicas."""
        names = {name: self.settings.choices[name] for name in ("method", "schedule", "model", "dataset")}
        replicas = {} if self.plan.replicas is None else {"replicas": [*self.plan.replicas]}
        return {**names, "executor": self.settings.executor.name, "stages": self.num_stages, **replicas}

    def origin(self) -> dict[str, Any]:
        """Last fields of the summary: all choices, the machine and the provenance."""
        return {
            "choices": {group: choice for group, choice in self.settings.choices.items() if choice != "None"},
            "target_metrics": self.settings.train.target,
            "seed": self.settings.seed,
            "device": self.device,
            "threads": self.threads,
            "precision": self.settings.train.precision,
            "restarts": self.run.restarts + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            **self.provenance,
        }
