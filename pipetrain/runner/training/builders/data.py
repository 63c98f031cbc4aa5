"""The data set of a run and its loaders."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pipetrain.engine.data.fetch import generator_kept
from pipetrain.engine.data.fingerprint import Fingerprint, fingerprint
from pipetrain.engine.data.interface import Split
from pipetrain.engine.data.loader import Loader
from pipetrain.engine.data.ranges import LabelRange, TokenRange
from pipetrain.engine.data.samples import NamedData, naming_errors
from pipetrain.engine.data.splits import data_object
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.seeding import key, python_draws
from pipetrain.runner.config.settings import DatasetSettings, Settings

_COMPARED = 8
"""Samples of a split that processes compare."""


@dataclass(frozen=True)
class Data:
    """The data set of a run and its loaders."""

    dataset: Any
    train: Loader
    evaluation: Loader

    @property
    def example(self) -> tuple[Tensor, ...]:
        """The inputs of one training minibatch, the same for every seed: stages are balanced for its shapes."""
        return self.train.example()

    def fingerprints(self) -> Mapping[str, Fingerprint]:
        """Those of `train`, by the samples that come first, and of `eval`, by some from its whole length."""
        first = itertools.chain.from_iterable(self.train.minibatches(0))
        last = self.evaluation.samples_per_epoch - 1
        spread = sorted({last * part // (_COMPARED - 1) for part in range(_COMPARED)})
        return {
            "train": fingerprint(self.train, itertools.islice(first, _COMPARED)),
            "eval": fingerprint(self.evaluation, spread),
        }

    def expect(self, labels: LabelRange | None, tokens: TokenRange | None) -> None:
        """Checks each label and token that is read against those that the model can learn and knows."""
        self.train.labels = labels
        self.evaluation.labels = labels and replace(labels, split="eval")
        self.train.tokens = tokens
        self.evaluation.tokens = tokens and replace(tokens, split="eval")


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """torch's, Python's and numpy's default generators draw from the seed inside, and go on as before after it."""
    with generator_kept() as generator, python_draws(key(seed)):
        generator.manual_seed(key(seed))
        yield


def build_dataset(settings: DatasetSettings, seed: int) -> Any:
    """The data set, the same in every process: what its target draws at random depends on the run's seed alone.

    Raises:
        ConfigError: the target does not return one.
    """
    target = settings.target
    with _drawing(seed):
        returned = target.build()
    try:
        dataset = data_object(returned)
    except ConfigError as error:
        raise ConfigError(f"{target.setting}: {error}") from error
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
