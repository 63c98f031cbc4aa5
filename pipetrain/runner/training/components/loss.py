"""The loss of a run and the further metrics of its evaluations, and the checks of both on the model's first outputs."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from pipetrain.data.interface import DataSet
from pipetrain.engine import losses
from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError, RunError
from pipetrain.engine.executors.evaluation import PartScore, metrics_of
from pipetrain.engine.executors.feed import Targets
from pipetrain.engine.failure import described
from pipetrain.engine.losses import NO_METRICS, Loss, Metric, Metrics
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.tensors import Tensors
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.settings import MetricSettings, Settings
from pipetrain.runner.config.suggestions import did_you_mean
from pipetrain.runner.training.components.data import Data, evaluation_batch_size
from pipetrain.runner.training.components.dry_run import DryRun, several_outputs, types_and_shapes

_ROUNDING = 1e-3
"""Largest relative difference of two losses that may be rounding."""


def build_loss(target: Target, dataset: Any) -> Loss:
    """The loss of the last stage; an `ignore_index` of null is the data set's `padding`, if it has any."""
    padding = DataSet(dataset).padding
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
            f"{target.setting}: sums over the samples (reduction=sum), so gradients would depend on the number of "
            "microbatches and losses on the size of a minibatch; use reduction=mean"
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
                raise ConfigError(f"loss.{name}={value}: must be a list of numbers") from error
    return tensors


def build_metrics(asked: Mapping[str, MetricSettings]) -> Metrics:
    """The metrics of evaluations in addition to those of the loss.

    Raises:
        ConfigError: a target refuses an option, returns something else, or does not say which of two values is better.
    """
    fresh: dict[str, Metric] = {}
    lower: list[str] = []
    for name, each in asked.items():
        metric = each.target.build()
        if isinstance(metric, type) or not all(callable(getattr(metric, part, None)) for part in ("update", "compute")):
            raise each.target.wrong_type_error(metric, "an object with `update` and `compute`")
        higher = each.rises(metric)
        if higher is None:
            raise ConfigError(
                f"metrics.{name}: {each.target.path} does not say whether more is better; set "
                f"metrics.{name}.higher_is_better=true or false"
            )
        fresh[name] = metric
        lower += [] if higher else [name]
    return Metrics(fresh, tuple(lower))


def falling_metrics(metrics: Metrics, dataset: Any) -> tuple[str, ...]:
    """Names of metrics, in addition to those of the loss, that fall as the model improves."""
    decoded = getattr(DataSet(dataset).decoding, "lower_is_better", ())
    # without decoding, a further metric may have the name of a decoded one
    return *metrics.lower_is_better, *(name for name in decoded if name not in metrics.fresh)


def check_loss(
    settings: Settings, trial: DryRun, loss: Loss, further: Metrics = NO_METRICS, decoded: Sequence[str] = ()
) -> list[str]:
    """Notes on the loss of two samples and its gradient, and on metrics that cannot be computed from so few.

    `decoded` are names of the metrics of generated texts. A run that never evaluates has no metrics.

    Raises:
        ConfigError: the loss or a metric does not take them, two metrics have one name, or `train.target`,
            `checkpoint.metric` or `sweep.objective` names no metric.
    """
    notes = []
    if isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        notes.append("warning: the loss has parameters, which stay unchanged: only those of the model are trained")
    of_loss = _metrics(settings, trial, loss)
    if not settings.eval.every_epochs:
        return notes
    metrics = _all_metrics(of_loss, decoded, further)
    with warnings.catch_warnings(action="ignore"):  # of so few samples
        notes += _check_further(trial, further)
    _check_named(settings, metrics)
    return notes


def _all_metrics(of_loss: Sequence[str], decoded: Sequence[str], further: Metrics) -> list[str]:
    """Names of all metrics of an evaluation; raises a ConfigError if two have one name."""
    names = list(of_loss)
    for setting, more in (("dataset: `decoding.metrics`: ", decoded), ("metrics.", further.fresh)):
        if twice := [name for name in more if name in names]:
            raise ConfigError(f"{setting}{twice[0]}: evaluations already have a metric of this name; choose another")
        names += more
    return names


def _check_named(settings: Settings, metrics: Sequence[str]) -> None:
    """Raises a ConfigError for a setting that names another metric."""
    target, best, objective = settings.train.target, settings.checkpoint.metric, settings.sweep.objective
    named = [(f"train.target={target}", name) for name in target or {}]
    named += [(f"checkpoint.metric={best}", best)]
    named += [] if objective is None else [(f"sweep.objective={objective}", objective)]
    for given, name in named:
        if name not in metrics:
            instead = did_you_mean(name, metrics) or f"; an evaluation gives {', '.join(metrics)}"
            raise ConfigError(f"{given}: no metric {name}{instead}")


def _metrics(settings: Settings, trial: DryRun, loss: Loss) -> list[str]:
    try:
        _check_gradient(loss, trial)
        if not settings.eval.every_epochs:
            return []
        score = PartScore.of(loss, trial.outputs, Targets(trial.targets, trial.targets))
        if hasattr(loss, "metrics"):
            _check_sums(loss, trial, score)
    except Exception as error:
        cure = _type_of_targets(loss, trial)
        raise ConfigError(f"{settings.loss.setting}: {_reason(error, trial)}{cure}") from error
    return list(metrics_of([score]))


def _check_gradient(loss: Loss, trial: DryRun) -> None:
    """Checks that the loss is a mean, and has gradients with respect to the outputs."""
    outputs = [each.clone().requires_grad_() if each.is_floating_point() else each for each in trial.outputs]
    with torch.enable_grad():
        mean = loss(*(each.clone() for each in outputs), *trial.targets)
    losses.check_mean(mean)
    if not mean.requires_grad:
        raise RunError("no gradient flows from the loss to the outputs of the model: nothing could be learned")
    mean.sum().backward()


def _type_of_targets(loss: Loss, trial: DryRun) -> str:
    """A type of the targets that the loss takes if it refuses theirs, after a semicolon; empty without one."""
    if _has_gradient(loss, trial):  # the types are not why it was refused
        return ""
    whole = all(torch.equal(target.long().to(target.dtype), target) for target in trial.targets)
    for kind, name in ((torch.int64, "int64"), (torch.float32, "float32"))[0 if whole else 1 :]:
        if _has_gradient(loss, replace(trial, targets=tuple(target.to(kind) for target in trial.targets))):
            return f"; return the targets as {name}"
    return ""


def _has_gradient(loss: Loss, trial: DryRun) -> bool:
    try:
        _check_gradient(loss, trial)
    except Exception:
        return False
    return True


def check_halves(
    settings: Settings, data: Data, chain: LayerChain, loss: Loss, trial: DryRun, arithmetic: ComputeOptions
) -> list[str]:
    """A warning if a user's loss that is computed of some samples at a time is no mean over samples."""
    matters, cure = list[str](), "eval.batch_size is how many of them it compares"
    if settings.eval.every_epochs and len(data.evaluation) > 1:
        matters.append(f"eval.batch_size={evaluation_batch_size(settings)}")
    if settings.train.microbatches > 1:
        matters.insert(0, f"train.microbatches={settings.train.microbatches}")
        cure = "train.microbatches=1 keeps those of a minibatch together"
    ours = type(loss).__module__.startswith(("pipetrain.engine.losses.", "torch.nn.modules."))
    if not matters or ours:
        return []
    outputs, targets = several_outputs(trial, chain, arithmetic)
    if (found := whole_and_halves(loss, outputs, targets)) is None:
        return []
    return [
        f"warning: {settings.loss.setting}: the loss of {len(targets[0])} samples is {found[0]:.4g}, and that of "
        f"their halves {found[1]:.4g} on average, so it changes with {' and '.join(matters)}: if it compares "
        f"samples with each other, {cure}; if it divides by another number than theirs, it needs a `count` "
        "(docs/your-own.md)"
    ]


@torch.no_grad()
def whole_and_halves(loss: Loss, outputs: Tensors, targets: Tensors) -> tuple[float, float] | None:
    """The loss of some samples, and the mean over their halves as over microbatches.

    None if they agree within rounding, or cannot be compared: the loss draws at random, or needs more samples.
    """
    samples = len(targets[0])
    if samples < 2 or any(not tensor.ndim or len(tensor) != samples for tensor in (*outputs, *targets)):
        return None

    def value(rows: slice) -> float:
        return loss(*(each[rows].clone() for each in outputs), *(each[rows] for each in targets)).item()

    parts = slice(None, samples // 2), slice(samples // 2, None)
    try:
        with warnings.catch_warnings(action="ignore"):
            whole, again = value(slice(None)), value(slice(None))
            counts = [losses.count_of(loss, tuple(each[rows] for each in targets)) for rows in parts]
            values = [value(rows) if count else 0.0 for rows, count in zip(parts, counts, strict=True)]
    except Exception:
        return None
    if not math.isfinite(whole) or whole != again or not any(counts):
        return None
    mean = sum(losses.microbatch_weight(counts, j) * each for j, each in enumerate(values))
    agree = math.isclose(whole, mean, rel_tol=0, abs_tol=_ROUNDING * max(1e-3, *map(abs, (whole, *values))))
    return None if agree else (whole, mean)


def _check_sums(loss: Loss, trial: DryRun, together: PartScore) -> None:
    """Checks that the hits among several samples are the sum of those among each."""
    samples = range(len(trial.targets[0]))
    try:
        alone = [losses.correct_counts(loss, _row(trial.outputs, i), _row(trial.targets, i)) for i in samples]
        counts = [losses.counts_of(loss, _row(trial.targets, i))[1] for i in samples]
    except Exception:  # a metric that takes no minibatch of one sample, which there may never be
        return
    for name, hits in together.hits.items():
        each = [float(found[name]) for found in alone]
        for value, count in zip(each, counts, strict=True):
            losses.check_hits(name, value, count)
        if sum(each) != float(hits):
            raise RunError(
                f"`metrics` of the loss: {name} is {float(hits):g} for {len(samples)} samples together, but "
                f"{', '.join(f'{value:g}' for value in each)} for each alone; a metric that is not a "
                "count of hits, such as F1, belongs in `metrics`: docs/metrics.md"
            )


def _row(tensors: Tensors, index: int) -> Tensors:
    return tuple(tensor[index : index + 1] for tensor in tensors)


def _check_further(trial: DryRun, further: Metrics) -> list[str]:
    """Updates the metrics with two samples, too few for some, such as correlations."""
    notes = []
    for name, metric in further.fresh.items():
        try:
            evaluated = Metrics({name: metric}).begin()
            evaluated.update((*trial.outputs, *trial.targets))
        except RunError as error:
            raise ConfigError(_reason(error, trial)) from error
        try:
            evaluated.values()
        except RunError as error:
            notes.append(f"warning: {error}; this was with two samples, and may work with the whole evaluation set")
    return notes


def _reason(error: Exception, trial: DryRun) -> str:
    return (
        f"{described(error).rstrip('.')}; for outputs {types_and_shapes(trial.outputs)} of the model and targets "
        f"{types_and_shapes(trial.targets)} of the data set"
    )
