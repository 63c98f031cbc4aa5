"""The data set of a run and its loaders, and the checks that the model can use its samples."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from pipetrain.data.fetch import generator_kept
from pipetrain.data.fingerprint import Fingerprint, difference, fingerprint, fingerprint_like, unreliable_sample
from pipetrain.data.interface import DataSet, Split
from pipetrain.data.loader import Loader
from pipetrain.data.ranges import LabelRange, TokenRange, class_count
from pipetrain.data.sample_checks import check_samples
from pipetrain.data.samples import NamedData, naming_errors
from pipetrain.data.splits import data_object
from pipetrain.engine.errors import ConfigError, RunError
from pipetrain.engine.losses import Loss, ignored_target, is_classification, number_of_classes
from pipetrain.engine.seeding import key, python_draws
from pipetrain.engine.tensors import Tensors
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.settings import DatasetSettings, Settings
from pipetrain.runner.partition.run_plan import Plan

_COMPARED = 8
"""Samples of a split that processes compare."""


@dataclass(frozen=True)
class Data:
    """The data set of a run and its loaders."""

    dataset: Any
    train: Loader
    evaluation: Loader

    @cached_property
    def example(self) -> tuple[Tensor, ...]:
        """The inputs of one training minibatch, the same for every seed: stages are balanced for its shapes."""
        return self.train.example()

    @property
    def loaders(self) -> Mapping[str, Loader]:
        """Name of a split -> its loader."""
        return {"train": self.train, "eval": self.evaluation}

    def fingerprints(self) -> Mapping[str, Fingerprint]:
        """A fingerprint of `train`, by the samples that come first, and of `eval`, by samples spread over it."""
        first = itertools.chain.from_iterable(self.train.minibatches(0))
        last = self.evaluation.samples_per_epoch - 1
        spread = sorted({last * part // (_COMPARED - 1) for part in range(_COMPARED)})
        return {
            "train": fingerprint(self.train, itertools.islice(first, _COMPARED)),
            "eval": fingerprint(self.evaluation, spread),
        }

    def check_as_prepared(self, prepared: Mapping[str, Fingerprint]) -> None:
        """Raises a RunError if a sample differs from the one that was read when the run was prepared."""
        for name, before in prepared.items():
            found = difference(fingerprint_like(before, self.loaders[name], repeats=False), before)
            if found is not None:
                raise RunError(
                    f"dataset: {found[0]} of its `{name}` is {found[1]} here, but {found[2]} when the run was "
                    "prepared; its code must give the same samples in every process"
                )

    def expect(self, labels: LabelRange | None, tokens: TokenRange | None) -> None:
        """Checks each label and token that is read against those that the model can learn and knows."""
        self.train.labels = labels
        self.evaluation.labels = labels and replace(labels, split="eval")
        self.train.tokens = tokens
        self.evaluation.tokens = tokens and replace(tokens, split="eval")

    def check_samples(self, *, evaluates: bool) -> None:
        """Checks the expected labels and tokens before the start; raises as `check_samples`.

        The evaluation set is left out unless the run `evaluates`.
        """
        for loader in (self.train, self.evaluation) if evaluates else (self.train,):
            check_samples(loader)


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """torch's, Python's and numpy's default generators draw from the seed inside, and go on as before after it."""
    with generator_kept() as generator, python_draws(key(seed)):
        generator.manual_seed(key(seed))
        yield


def build_dataset(settings: DatasetSettings, seed: int) -> Any:
    """The data set, the same in every process: what its target draws at random depends on the run's seed alone."""
    target = settings.target
    with _drawing(seed):
        returned = target.build()
    with target.naming():
        dataset = data_object(returned)
    for part in ("train", "eval"):
        with naming_errors(f"len() of `{part}`"):
            empty = hasattr(getattr(dataset, part), "__len__") and not len(getattr(dataset, part))
        if empty:
            raise ConfigError(f"{target.setting}: its `{part}` is empty")
    return dataset if settings.target_key is None else NamedData(dataset, settings.target_key, settings.input_key)


def build_data(settings: Settings) -> Data:
    """The data set and its loaders.

    Raises:
        ConfigError: the target does not return a data set, or a minibatch has more samples than an epoch.
    """
    dataset, train = build_dataset(settings.dataset, settings.seed), settings.train
    with _drawing(settings.seed):
        loader = Loader(
            dataset.train,
            batch_size=train.batch_size,
            microbatches=train.microbatches,
            shuffle=settings.dataset.shuffle,
            **_loader_options(settings),
        )
    data = Data(dataset, loader, evaluation_loader(settings, dataset))
    if train.batch_size > data.train.samples_per_epoch and Split(dataset.train).batches is None:
        limited = "" if settings.dataset.limit is None else f", with dataset.limit={settings.dataset.limit}"
        raise ConfigError(
            f"train.batch_size={train.batch_size}: more than the {data.train.samples_per_epoch} samples of an "
            f"epoch{limited}"
        )
    return data


def evaluation_loader(settings: Settings, dataset: Any) -> Loader:
    """The loader of the evaluation set."""
    batch_size = evaluation_batch_size(settings)
    with _drawing(settings.seed):
        return Loader(dataset.eval, batch_size=batch_size, shuffle=False, drop_short=False, **_loader_options(settings))


def evaluation_batch_size(settings: Settings) -> int:
    """Samples of the evaluation set that are computed together."""
    return settings.eval.batch_size or settings.train.batch_size // settings.train.microbatches


def _loader_options(settings: Settings) -> dict[str, Any]:
    data = settings.dataset
    return {"seed": settings.seed, "limit": data.limit, "workers": data.workers, "prefetch": data.prefetch}


def check_data(settings: Settings, data: Data, device: str) -> Iterator[str]:
    """Notes on the data set, such as samples that it leaves out.

    Raises:
        ConfigError: a label or token id is out of range.
        DataError: a sample cannot be read.
    """
    data.check_samples(evaluates=bool(settings.eval.every_epochs))
    yield from DataSet(data.dataset).notes
    yield from _left_out(data, settings.train.microbatches)
    if settings.dataset.pin_memory and device == "cpu":
        yield "dataset.pin_memory=true changes nothing: device=cpu copies no minibatch"


def _left_out(data: Data, microbatches: int) -> Iterator[str]:
    for name, loader in (("training", data.train), ("evaluation", data.evaluation)):
        if loader.unlisted:
            yield f"{loader.unlisted} {name} samples are in none of the minibatches that the data set makes"
    if dropped := data.train.dropped:
        few = f"fewer than train.microbatches={microbatches}"
        if Split(data.dataset.train).batches is not None:
            yield f"{dropped} samples of each epoch are dropped: their minibatches have {few}"
        else:
            yield f"the last {dropped} samples of each epoch are dropped: {few}"


def label_range(model: Target, dataset: Any, loss: Loss, outputs: Tensors, targets: Tensors) -> LabelRange | None:
    """The labels that the model can learn; None if the loss is not over classes."""
    scores = outputs[0]
    if len(outputs) > 1 or scores.ndim < 2 or not is_classification(loss, targets):
        return None
    setting = "model.classes" if "classes" in model.parameters() else None
    return LabelRange("train", number_of_classes(loss, scores), ignored_target(loss), class_count(dataset), setting)


def check_labels(model: Target, labels: LabelRange | None, targets: Tensors, indices: Sequence[int]) -> None:
    """Raises a ConfigError if a label is out of range, or the data set has one class or more than the model outputs."""
    if labels is None:
        return
    known = labels.known
    if known is not None and known > labels.classes:
        larger = f"; model.classes={known} works" if labels.setting else ""
        raise ConfigError(f"{model.setting}: {labels.classes} outputs, but the data set has {known} classes{larger}")
    if labels.classes < 2:
        follows = "classes" in model.parameters(required=True) and model.options.get("classes") is None
        if known is None and not follows:
            raise ConfigError(f"{model.setting}: 1 output; a cross-entropy needs one for each class, so at least 2")
        raise ConfigError("dataset: all samples have the same class, so there is nothing to learn")
    labels.check(targets[0], indices)


def check_vocabulary(model: Target, tokens: TokenRange | None) -> None:
    """Raises a ConfigError if the vocabulary that the data set declares is larger than the model's.

    `tokens` has the rows of the model's tables and the tokens of the data set; None if the model looks up no ids.
    """
    if tokens is None or tokens.known is None:
        return
    rows = min(tokens.rows.values())
    if tokens.known > rows:
        raise ConfigError(
            f"{model.setting}: its vocabulary has {rows} tokens, and the data set's has {tokens.known}; make a model "
            f"for {tokens.known}"
        )


def check_repeatable(train: Fingerprint, plan: Plan) -> None:
    """Raises a ConfigError if the first and the last stage, which both read samples, would read different ones."""
    index = unreliable_sample(train)
    if index is not None and len(plan.bounds) > 1 and not plan.finegrained:
        raise ConfigError(
            f"dataset: input and target of sample {index} differ each time it is read, and the first and the last "
            "stage read it separately; draw from the default generator of torch, random or numpy, which is seeded for "
            "each sample (docs/your-own.md), or use partition.stages=1"
        )
