"""The job of a run's processes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipetrain.config.settings import ReplicaSettings, Settings
from pipetrain.data.ranges import LabelRange, TokenRange
from pipetrain.program.recomputation import RecomputeSegments
from pipetrain.run.checkpoint import store
from pipetrain.run.timetable import Timetable
from pipetrain.schedules import Placement
from pipetrain.tracking.run_directory import RunDirectory


@dataclass(frozen=True)
class Job:
    """All that a process needs to know of a run; made once, where it is started.

    Attributes:
        settings: what was asked for.
        run: the run directory.
        bounds: (first layer, last layer exclusive) of each stage; weight units in place of layers where `finegrained`.
        plan: what is known of each stage before it runs, for the summary.
        timetable: when the run drains, evaluates, saves and ends.
        segments: which stages recompute together; None if none does.
        placement: which process has which stages.
        threads: intra-op threads of each process.
        device: cpu or cuda.
        resume: the checkpoint to continue from.
        finegrained: True if stages are of single weights.
        provenance: where the run comes from, for the summary.
        finished: True if nothing is left to run or to write.
        labels: that the model can learn; None if the loss is not over classes.
        tokens: that the model knows; None if it looks none up.
        replicas: how many processes have each stage.
        lower_is_better: the names of further metrics that fall as the model improves.
    """

    settings: Settings
    run: RunDirectory
    bounds: list[tuple[int, int]]
    plan: list[dict[str, Any]]
    timetable: Timetable
    segments: RecomputeSegments | None
    placement: Placement
    threads: int
    device: str
    resume: Path | None = None
    finegrained: bool = False
    provenance: Mapping[str, Any] = field(default_factory=dict)
    finished: bool = False
    labels: LabelRange | None = None
    tokens: TokenRange | None = None
    replicas: ReplicaSettings = field(default_factory=ReplicaSettings)
    lower_is_better: tuple[str, ...] = ()

    @property
    def num_stages(self) -> int:
        """Number of stages in all processes together."""
        return len(self.bounds)

    @property
    def start_step(self) -> int:
        """Number of steps that were done when the run starts or resumes."""
        return 0 if self.resume is None else int(store.load_progress(self.resume)["step"])

    @property
    def resumes_itself(self) -> bool:
        """True if the checkpoint to continue from is in this run directory."""
        return self.resume is not None and self.resume.parent == self.run.checkpoints.resolve()

    def head(self) -> dict[str, Any]:
        """The first fields of the summary: what was asked for."""
        names = {name: self.settings.choices[name] for name in ("method", "schedule", "model", "dataset")}
        replicas = {} if self.replicas.counts is None else {"replicas": [*self.replicas.counts]}
        return {**names, "executor": self.settings.executor.name, "stages": self.num_stages, **replicas}

    def origin(self) -> dict[str, Any]:
        """The last fields of the summary: every choice that was made, and where the run comes from."""
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
