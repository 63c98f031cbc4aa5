"""What a process is told of a run."""

from dataclasses import dataclass
from typing import Any

from pipetrain.schedules import Placement


@dataclass(frozen=True)
class Job:
    """All that a process needs to know of a run; made once, where it is started.

    Attributes:
        config: the resolved configuration.
        names: what was chosen of each group, such as {"model": "resnet20"}.
        run: the run directory.
        bounds: (first layer, last layer exclusive) of each stage; weight units in place of layers where `finegrained`.
        plan: what is known of each stage before it runs, for the summary.
        threads: intra-op threads of each process.
        device: cpu or cuda.
        resume: the checkpoint to continue from.
        finegrained: whether stages are of single weights.
        placed: which process has which stages; null: one each.
    """

    config: dict[str, Any]
    names: dict[str, str]
    run: str
    bounds: list[tuple[int, int]]
    plan: list[dict[str, Any]]
    threads: int
    device: str
    resume: str | None = None
    finegrained: bool = False
    placed: Placement | None = None

    @property
    def num_stages(self) -> int:
        """D."""
        return len(self.bounds)

    @property
    def placement(self) -> Placement:
        """Which process has which stages, where each has its own."""
        return self.placed or Placement.one_each(self.num_stages)

    def head(self) -> dict[str, Any]:
        """The first fields of the summary."""
        names = {name: self.names[name] for name in ("method", "schedule", "model", "dataset")}
        return {**names, "executor": self.config["executor"]["name"], "stages": self.num_stages}
