"""Whether the loss takes what the model gives and the data set holds, and reports the metrics that are asked for."""

from collections.abc import Sequence

from pipetrain.config.likeness import did_you_mean
from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.executors.evaluation import PartScore, metrics_of
from pipetrain.failure import described
from pipetrain.losses import Loss
from pipetrain.run.trial import Trial
from pipetrain.tensors import Tensors


def check_loss(settings: Settings, trial: Trial, loss: Loss, decoded: Sequence[str] = ()) -> None:
    """Scores two samples, as every evaluation does; a run that never evaluates is left alone.

    Args:
        settings: of the run.
        trial: what the model makes of two samples.
        loss: of the run.
        decoded: the metrics that evaluations take of the whole model beside.

    Raises:
        ConfigError: the loss does not take them, or `train.target` or `checkpoint.metric` names no metric.
    """
    if settings.eval.every_epochs:
        metrics = [*_metrics(settings, trial, loss), *decoded]
        target, best = settings.train.target, settings.checkpoint.metric
        for name in target or {}:
            _check_metric(f"train.target={target}", name, metrics)
        _check_metric(f"checkpoint.metric={best}", best, metrics)


def _check_metric(given: str, name: str, metrics: Sequence[str]) -> None:
    if name not in metrics:
        instead = did_you_mean(name, metrics) or f"; an evaluation gives {', '.join(metrics)}"
        raise ConfigError(f"{given}: no metric {name}{instead}")


def _metrics(settings: Settings, trial: Trial, loss: Loss) -> list[str]:
    try:
        score = PartScore.of(loss, trial.outputs, trial.targets)
    except Exception as error:
        reason = described(error).rstrip(".")
        raise ConfigError(
            f"loss._target_={settings.loss.path}: {reason}; for outputs {_shown(trial.outputs)} of the model and "
            f"targets {_shown(trial.targets)} of the data set"
        ) from error
    return list(metrics_of([score]))


def _shown(tensors: Tensors) -> str:
    return ", ".join(f"{str(each.dtype).removeprefix('torch.')} {tuple(each.shape)}" for each in tensors)
