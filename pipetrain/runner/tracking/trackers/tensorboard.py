"""The TensorBoard event file of a run, written where the last stage is."""

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.metadata import EXPERIMENT_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from typing_extensions import override

from pipetrain.engine.program.trace import QUANTITIES
from pipetrain.runner.config.messages import have_formats
from pipetrain.runner.config.settings import replicas_train_alone
from pipetrain.runner.tracking.callbacks import Callback, RunInfo
from pipetrain.runner.tracking.records import OF_MESSAGES, REPLICA_DISTANCE, Record, read_records
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.stored_settings import values_set
from pipetrain.runner.tracking.trackers.points import CHARTS, RATE, points_of, results

_STAGES = r"stage\d+(/replica\d+)?"
_FIRST = ("method", "model", "seed", "optimizer.lr", "partition.stages")
"""The hyperparameters that come first on TensorBoard's page."""


class TensorBoard(Callback):
    """Scalars by step: `train/`, `eval/`, `throughput/`, `time/`, and a group for each quantity of the stages.

    Of a resumed run, points from its first step on are superseded.
    """

    @override
    def on_start(self, run: RunInfo) -> None:
        directory = RunDirectory(run.directory)
        new = not any(directory.tensorboard.glob("events.out.tfevents.*"))
        self._writer = SummaryWriter(str(directory.tensorboard), purge_step=run.step)
        self._hyperparameters = values_set(run.settings, run.choices)
        measures = run.settings.get("log", {}).get("staleness_every_steps") is not None
        left_out = {*(() if measures else QUANTITIES), *(() if have_formats(run.settings) else OF_MESSAGES)}
        left_out |= set() if replicas_train_alone(run.settings) else {REPLICA_DISTANCE}
        self._to_chart = [name for name in CHARTS if name not in left_out]
        text = OmegaConf.to_yaml(OmegaConf.create(dict(run.settings)))
        self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()))
        for record in read_records(directory) if run.step else ():
            if new or record["step"] == run.step:  # superseded, too
                self.on_record(record)

    @override
    def on_record(self, record: Record) -> None:
        if record["kind"] == "interval" and self._to_chart:
            by_stage = f"stage0_{RATE}" in record  # the rates differ
            names = [CHARTS[name][0] for name in self._to_chart if by_stage or name != RATE]
            self._writer.add_custom_scalars({"stages": {name: ["Multiline", [f"{name}/{_STAGES}"]] for name in names}})
            self._to_chart = []
        self._add(record["step"], points_of(record))
        if record["kind"] != "interval":
            self._writer.flush()

    def _add(self, step: int, points: Mapping[str, float]) -> None:
        for tag, value in points.items():
            self._writer.add_scalar(tag, value, step)

    @override
    def on_end(self, summary: Mapping[str, Any]) -> None:
        points = results(summary)
        self._add(summary["steps"], points)
        # not `add_hparams`, which would write another file
        for part in hparams(self._hyperparameters, dict(points)):
            self._writer._get_file_writer().add_summary(_with_first(part))
        self._writer.close()


def _with_first(part: Summary) -> Summary:
    """The summary; one of an experiment with its main hyperparameters in front.

    TensorBoard shows those marked as differing first, each group sorted by name.
    """
    for value in part.value:
        if value.tag == EXPERIMENT_TAG:
            content = HParamsPluginData.FromString(value.metadata.plugin_data.content)
            for info in content.experiment.hparam_infos:
                info.differs = info.name in _FIRST
            value.metadata.plugin_data.content = content.SerializeToString()
    return part
