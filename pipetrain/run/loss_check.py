"""Whether the loss takes what the model gives and the data set holds, and reports the metrics that are asked for."""

from collections.abc import Sequence

import torch

from pipetrain.config.likeness import did_you_mean
from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.executors.evaluation import Score
from pipetrain.failure import described
from pipetrain.losses import Loss
from pipetrain.models.chain import LayerChain
from pipetrain.run.build import Data
from pipetrain.tensors import Tensors

_SAMPLES = 2


def check_loss(settings: Settings, data: Data, chain: LayerChain, loss: Loss) -> None:
    """Evaluates two samples, as every evaluation does; a run that never evaluates is left alone.

    Raises:
        ConfigError: the loss does not take them, or has no metric that `train.target` or `checkpoint.metric` names.
    """
    if settings.eval.every_epochs:
        metrics = _metrics(settings, data, chain, loss)
        target, best = settings.train.target, settings.checkpoint.metric
        for name in target or {}:
            _check_metric(f"train.target={target}", name, metrics)
        _check_metric(f"checkpoint.metric={best}", best, metrics)


def _check_metric(given: str, name: str, metrics: Sequence[str]) -> None:
    if name not in metrics:
        instead = did_you_mean(name, metrics) or f"; an evaluation gives {', '.join(metrics)}"
        raise ConfigError(f"{given}: no metric {name}{instead}")


def _metrics(settings: Settings, data: Data, chain: LayerChain, loss: Loss) -> list[str]:
    inputs, targets = (_first(part) for part in next(data.train.samples(0, 0, 1)))
    outputs = _outputs(chain, inputs)
    score = Score(loss)
    try:
        score.add(outputs, targets)
    except Exception as error:
        reason = described(error).rstrip(".")
        raise ConfigError(
            f"loss._target_={settings.loss.path}: {reason}; for outputs {_shown(outputs)} of the model and targets "
            f"{_shown(targets)} of the data set"
        ) from error
    return list(score.metrics())


@torch.no_grad()
def _outputs(chain: LayerChain, inputs: Tensors) -> Tensors:
    chain.module.eval()  # buffers stay as they are, and nothing is drawn
    outputs = chain(*inputs)
    chain.module.train()
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _first(tensors: Tensors) -> Tensors:
    return tuple(tensor[:_SAMPLES] for tensor in tensors)


def _shown(tensors: Tensors) -> str:
    return ", ".join(f"{str(each.dtype).removeprefix('torch.')} {tuple(each.shape)}" for each in tensors)
