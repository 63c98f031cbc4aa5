"""The loss of a run, and the further metrics of its evaluations."""

from typing import Any, get_args

import torch
from torch import Tensor

from pipetrain.engine.data.interface import DataSet
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.losses import Loss, Metric, Metrics
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.settings import Settings


def build_loss(settings: Settings, dataset: Any) -> Loss:
    """The loss of the last stage; an `ignore_index` of null is the data set's `padding`, if it has any.

    Raises:
        ConfigError: the target refuses an option, or returns something else.
    """
    target, padding = settings.loss, DataSet(dataset).padding
    missing = [name for name in target.parameters(required=True) if name not in target.options]
    if missing:  # a loss function, in place of a function that returns one
        raise ConfigError(
            f"{target.setting}: is called once, to make the loss, and needs {', '.join(missing)}; name a "
            f"class such as torch.nn.MSELoss or a function that returns the loss, or set +loss.{missing[0]}"
        )
    options: dict[str, Any] = _tensors(target)
    if "ignore_index" in target.options and target.options["ignore_index"] is None and padding is not None:
        options["ignore_index"] = padding
    loss: Loss = target.build(**options)
    if not callable(loss) or isinstance(loss, type):
        raise target.wrong_type_error(loss, "a function of outputs and targets")
    if getattr(loss, "reduction", None) == "sum":
        raise ConfigError(
            f"{target.setting}: it sums over the samples (reduction=sum), so gradients would depend on the number of "
            "microbatches and losses on the size of a minibatch; reduction=mean works"
        )
    return loss


def _tensors(target: Target) -> dict[str, Tensor]:
    """The options that are lists, such as class weights, for parameters that take tensors."""
    tensors, parameters = {}, target.parameters()
    for name, value in target.options.items():
        kinds = parameters[name].annotation if name in parameters else None
        if isinstance(value, list) and Tensor in (kinds, *get_args(kinds)):
            try:
                tensors[name] = torch.tensor(value, dtype=torch.float32)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"loss.{name}={value}: a list of numbers is needed") from error
    return tensors


def build_metrics(settings: Settings) -> Metrics:
    """The metrics of evaluations in addition to those of the loss.

    Raises:
        ConfigError: a target refuses an option, returns something else, or does not say which of two values is better.
    """
    fresh: dict[str, Metric] = {}
    lower: list[str] = []
    for name, asked in settings.metrics.items():
        metric = asked.target.build()
        if isinstance(metric, type) or not all(callable(getattr(metric, each, None)) for each in ("update", "compute")):
            raise asked.target.wrong_type_error(metric, "an object with `update` and `compute`")
        higher = asked.rises(metric)
        if higher is None:
            raise ConfigError(
                f"metrics.{name}: {asked.target.path} does not say whether more is better; set "
                f"metrics.{name}.higher_is_better=true or false"
            )
        fresh[name] = metric
        lower += [] if higher else [name]
    return Metrics(fresh, tuple(lower))
