"""Checks of the data set: model and loss can use its samples."""

from collections.abc import Iterator

from pipetrain.engine.data.fingerprint import unreliable_sample
from pipetrain.engine.data.interface import DataSet, Split
from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.builders.data import Data
from pipetrain.runner.training.builders.model import derived_from_data
from pipetrain.runner.training.builders.optimizer import build_rate
from pipetrain.runner.training.checks.dry_run import evaluation_dry_run
from pipetrain.runner.training.checks.loss import check_halves, check_loss
from pipetrain.runner.training.checks.ranges import check_labels, check_samples, check_vocabulary
from pipetrain.runner.training.components import Components
from pipetrain.runner.training.whole_model import problem_of, whole_model_metrics


def check_data(settings: Settings, components: Components) -> Iterator[str]:
    """Notes on the data set, such as samples that it leaves out.

    Raises:
        ConfigError: the model, the loss or a metric does not accept its samples, or no learning rate can be built.
    """
    data, chain, trial, labels = components.data, components.chain, components.trial, components.labels
    if derived := derived_from_data(settings.model.target, data.dataset):
        values = ", ".join(f"model.{name}={value}" for name, value in derived.items())
        yield f"{values}: as the data show, which have no such attributes"
    yield from DataSet(data.dataset).notes
    yield from _left_out(data, settings.train.microbatches)
    if settings.dataset.pin_memory and components.device == "cpu":
        yield "dataset.pin_memory=true changes nothing: device=cpu copies no minibatch"
    if labels is not None:
        check_labels(settings, data, trial, labels)
    if trial.tokens is not None:
        check_vocabulary(settings, trial.tokens)
    of_whole_model = whole_model_metrics(settings, data.dataset, chain)
    decoded = () if of_whole_model is None else tuple(of_whole_model.decoding.metrics)
    yield from check_loss(settings, trial, components.loss, components.metrics, decoded)
    yield from check_halves(settings, components)
    build_rate(settings, components.timetable)(0)  # which otherwise only workers do
    check_samples(settings, data, labels, trial.tokens)
    _check_repeatable(components)
    if not settings.eval.every_epochs:
        return
    if (evaluated := evaluation_dry_run(data, chain, trial, components.arithmetic_of_checks)) is not None:
        check_loss(settings, evaluated, components.loss, components.metrics, decoded)
    decoding = DataSet(data.dataset).decoding
    if decoding is not None and settings.eval.decode and (problem := problem_of(decoding, chain)) is not None:
        yield f"warning: evaluations generate no texts: {problem}"


def _check_repeatable(components: Components) -> None:
    """Raises a ConfigError if the first and the last stage, each of which reads samples, would read different ones."""
    index = unreliable_sample(components.data_read["train"])
    if index is not None and len(components.plan.bounds) > 1 and not components.plan.finegrained:
        raise ConfigError(
            f"dataset: input and target of sample {index} are others each time it is read, and the first stage reads "
            "inputs, the last stage targets; draw from the default generators of torch, random or numpy, which are "
            "seeded for each sample (docs/your-own.md), or use partition.stages=1"
        )


def _left_out(data: Data, microbatches: int) -> Iterator[str]:
    for name, loader in (("training", data.train), ("evaluation", data.evaluation)):
        if loader.unlisted:
            yield f"{loader.unlisted} {name} samples are in no minibatch, as the data set makes them"
    if dropped := data.train.dropped:
        few = f"fewer than train.microbatches={microbatches}"
        if Split(data.dataset.train).batches is not None:
            yield f"{dropped} samples of each epoch are dropped: their minibatches have {few}"
        else:
            yield f"the last {dropped} samples of each epoch are dropped: {few}"
