"""The TensorBoard event file of a run, written where the last stage is."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.metadata import EXPERIMENT_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from pipetrain.tracking.hyperparameters import results
from pipetrain.tracking.records import Record, metrics_of
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.throughput import ALL_THROUGHPUTS

_MB = 1e-6


class Chart(NamedTuple):
    """A quantity of the stages: its tags are `name/stage0` and so on, those of replicas `name/stage0/replica1`."""

    name: str
    scale: float = 1.0


_RATE = "lr"
_CHARTS = {
    "idle_share": Chart("idle_share"),
    "activation_bytes_peak": Chart("activations_MB", _MB),
    "weight_bytes_peak": Chart("weights_MB", _MB),
    "peak_memory_bytes": Chart("memory_MB", _MB),
    "weight_versions_max": Chart("weight_versions"),
    "forward_staleness": Chart("forward_staleness"),
    "backward_staleness": Chart("backward_staleness"),
    _RATE: Chart("stage_lr"),
}
"""Field of a record, after `stageR_` -> its chart."""
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

    def start(self, config: Mapping[str, Any], *, rates_by_stage: bool) -> None:
        """Adds the layout of the custom scalars, and the configuration as text.

        Every quantity of the stages has the lines of all stages and replicas in one chart.

        Args:
            config: resolved.
            rates_by_stage: True if the stages have different learning rates.
        """
        names = [chart.name for field, chart in _CHARTS.items() if rates_by_stage or field != _RATE]
        self._writer.add_custom_scalars({"stages": {name: ["Multiline", [f"{name}/{_STAGES}"]] for name in names}})
        text = OmegaConf.to_yaml(OmegaConf.create(dict(config)))
        self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()))

    def interval(self, record: Record) -> None:
        """Adds the points of some steps."""
        self._add(record, {"train/loss": record["loss"], "train/lr": record["lr"]})
        self._add(record, {f"throughput/{name}": record[name] for name in ALL_THROUGHPUTS if name in record})
        self._add_stages(record)

    def epoch(self, record: Record) -> None:
        """Adds the points of an epoch's end."""
        self._add(record, {"train/epoch_loss": record["loss"], "time/wall_s": record["wall_s"]})
        self._add(record, {f"throughput/epoch_{name}": record[name] for name in ALL_THROUGHPUTS if name in record})
        self._add_stages(record)
        self._writer.flush()

    def evaluation(self, record: Record) -> None:
        """Adds the points of an evaluation."""
        self._add(record, {f"eval/{name}": value for name, value in metrics_of(record).items()})
        self._add(record, {"time/eval_s": record["eval_s"]})
        self._writer.flush()

    def _add_stages(self, record: Record) -> None:
        for name, value in record.items():
            if (found := _OF_STAGE.fullmatch(name)) and value is not None:
                *worker, field = (part for part in found.groups() if part)
                chart = _CHARTS[field]
                self._writer.add_scalar("/".join([chart.name, *worker]), value * chart.scale, record["step"])

    def _add(self, record: Record, points: Mapping[str, float | None]) -> None:
        for tag, value in points.items():
            if value is not None:
                self._writer.add_scalar(tag, value, record["step"])

    def close(self, hyperparameters: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Adds what was set and what came of it for TensorBoard's HPARAMS page, in this same file."""
        points = results(summary)
        self._add({"step": summary["steps"]}, points)
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
