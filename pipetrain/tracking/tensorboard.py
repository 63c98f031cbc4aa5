"""The TensorBoard event file of a run, written where the last stage is."""

from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from pipetrain.tracking.run_directory import RunDirectory


class Board:
    """Scalars under `train/`, `eval/`, `perf/`, `memory/` and `weights/`, by step.

    Args:
        run: the run directory.
        purge_step: points from this step on, of a run that is resumed here, are superseded.
    """

    def __init__(self, run: RunDirectory, purge_step: int | None) -> None:
        self._writer = SummaryWriter(str(run.tensorboard), purge_step=purge_step)

    def step(self, record: dict[str, Any]) -> None:
        """Adds the points of one step, from its line of metrics.jsonl."""
        step = record["step"]
        self._writer.add_scalar("train/loss", record["loss"], step)
        self._writer.add_scalar("train/lr", record["lr"], step)
        self._writer.add_scalar("perf/samples_per_second", record["samples_per_second"], step)

    def epoch(self, record: dict[str, Any]) -> None:
        """Adds the points of an epoch's end, from its line of metrics.jsonl."""
        step = record["step"]
        for name, value in record.get("eval", {}).items():
            self._writer.add_scalar(f"eval/{name}", value, step)
        for r, stage in enumerate(record["per_stage"]):
            self._writer.add_scalar(f"memory/stage{r}_bytes", stage["peak_memory_bytes"], step)
            self._writer.add_scalar(f"memory/stage{r}_weight_bytes", stage["weight_bytes_peak"], step)
            self._writer.add_scalar(f"weights/stage{r}_versions", stage["weight_versions_max"], step)
            for tag, field in (("memory/stage{}_activation_bytes", "activation_bytes_peak"),
                               ("perf/stage{}_idle_share", "idle_share")):  # fmt: skip
                if stage[field] is not None:
                    self._writer.add_scalar(tag.format(r), stage[field], step)
            for which in ("forward", "backward"):
                if values := stage[f"{which}_staleness"]:
                    self._writer.add_scalar(f"weights/stage{r}_{which}_staleness", max(values), step)
        self._writer.flush()

    def close(self, settings: dict[str, Any], metrics: dict[str, float]) -> None:
        """Adds the settings and final metrics for TensorBoard's HPARAMS page, in this same file."""
        tagged = {f"eval/{name}": value for name, value in metrics.items()}
        for summary in hparams(settings, tagged):
            self._writer._get_file_writer().add_summary(summary)
        self._writer.close()
