"""The TensorBoard event file of a run, written where the last stage is."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from omegaconf import OmegaConf
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.metadata import EXPERIMENT_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from pipetrain.tracking.records import QUANTITIES, Record, metrics_of
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.summary import totals_of_stages
from pipetrain.tracking.throughput import ALL_THROUGHPUTS

_MB = 1e-6


RATE = "lr"
_CHARTS = {
    "idle_share": ("idle_share", 1.0),
    "activation_bytes_peak": ("activations_MB", _MB),
    "weight_bytes_peak": ("weights_MB", _MB),
    "peak_memory_bytes": ("memory_MB", _MB),
    "weight_versions_max": ("weight_versions", 1.0),
    "forward_staleness": ("forward_staleness", 1.0),
    "backward_staleness": ("backward_staleness", 1.0),
    RATE: ("stage_lr", 1.0),
    **{name: (name, 1.0) for name in QUANTITIES},
}
"""Field of a record, after `stageR_` -> its chart and scale; tags are `CHART/stage0` or `CHART/stage0/replica1`."""
_TOTALS = {
    "idle_share": ("idle_share", 1.0),
    "weight_bytes": ("weights_MB", _MB),
    "activation_bytes": ("activations_MB", _MB),
    "memory_bytes": ("memory_MB", _MB),
}
"""Total of all stages -> its tag and scale."""
_OF_STAGE = re.compile(r"(stage\d+)_(?:(replica\d+)_)?(\w+)")
_STAGES = r"stage\d+(/replica\d+)?"
_FIRST = ("method", "model", "seed", "optimizer.lr", "partition.stages")
"""The hyperparameters that come first on TensorBoard's page."""


class TensorBoardWriter:
    """Scalars by step: `train/`, `eval/`, `throughput/`, `time/`, and a group for each quantity of the stages.

    Args:
        run: the run directory.
        purge_step: points from this step on, of a run that is resumed here, are superseded.
    """

    def __init__(self, run: RunDirectory, purge_step: int | None) -> None:
        self._writer = SummaryWriter(str(run.tensorboard), purge_step=purge_step)

    def start(self, config: Mapping[str, Any], unused: Collection[str] = ()) -> None:
        """Adds the resolved configuration as text, and a chart of each quantity with the lines of all stages.

        `unused` are the fields of stages that the run does not record.
        """
        names = [name for field, (name, _) in _CHARTS.items() if field not in unused]
        self._writer.add_custom_scalars({"stages": {name: ["Multiline", [f"{name}/{_STAGES}"]] for name in names}})
        text = OmegaConf.to_yaml(OmegaConf.create(dict(config)))
        self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()))

    def add(self, record: Record) -> None:
        """Adds the points of a record of metrics.jsonl: of some steps, of an epoch's end, or of an evaluation."""
        points: dict[str, float | None] = {}
        speeds = {name: record[name] for name in ALL_THROUGHPUTS if name in record}
        if record["kind"] == "interval":
            points = {"train/loss": record["loss"], "train/lr": record["lr"]}
            points |= {f"throughput/{name}": speed for name, speed in speeds.items()}
        elif record["kind"] == "epoch":
            points = {"train/epoch_loss": record["loss"], "time/wall_s": record["wall_s"]}
            points |= {f"throughput/epoch_{name}": speed for name, speed in speeds.items()}
        elif record["kind"] == "eval":
            points = {f"eval/{name}": value for name, value in metrics_of(record).items()}
            points["time/eval_s"] = record["eval_s"]
        for key, value in record.items():
            if (found := _OF_STAGE.fullmatch(key)) and value is not None:
                *worker, field = (part for part in found.groups() if part)
                name, scale = _CHARTS[field]
                points["/".join([name, *worker])] = value * scale
        self._add(record["step"], points)
        if record["kind"] != "interval":
            self._writer.flush()

    def _add(self, step: int, points: Mapping[str, float | None]) -> None:
        for tag, value in points.items():
            if value is not None:
                self._writer.add_scalar(tag, value, step)

    def close(self, hyperparameters: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Adds hyperparameters and results for TensorBoard's HPARAMS page, in this same file."""
        points = results(summary)
        self._add(summary["steps"], points)
        for part in hparams(dict(hyperparameters), dict(points)):
            self._writer._get_file_writer().add_summary(_with_first(part))
        self._writer.close()


def _with_first(part: Summary) -> Summary:
    """The summary; one of an experiment with its main hyperparameters in front.

    TensorBoard shows those that are marked as differing before the others, and both in the order of their names.
    """
    for value in part.value:
        if value.tag == EXPERIMENT_TAG:
            content = HParamsPluginData.FromString(value.metadata.plugin_data.content)
            for info in content.experiment.hparam_infos:
                info.differs = info.name in _FIRST
            value.metadata.plugin_data.content = content.SerializeToString()
    return part


def results(summary: Mapping[str, Any]) -> dict[str, float]:
    """The results of a run: metrics, times, throughput, and idle share and memory of all stages."""
    metrics = {f"{which}/{name}": value for which in ("final", "best") for name, value in summary[which].items()}
    numbers = {f"run/{name}": summary.get(name) for name in ("steps", "wall_s", "train_s", "eval_s", *ALL_THROUGHPUTS)}
    target = {"run/target_s": (summary.get("target") or {}).get("wall_s")}
    totals = totals_of_stages(summary["per_stage"])
    stages = {f"run/{tag}": totals[name] * scale for name, (tag, scale) in _TOTALS.items() if name in totals}
    return {name: value for name, value in {**metrics, **numbers, **target, **stages}.items() if value is not None}
