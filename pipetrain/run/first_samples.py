"""Samples that are read before a run, to hold what they have against the model."""

import time

from pipetrain.config.settings import Settings
from pipetrain.data.fetch import Fetch
from pipetrain.data.labels import LabelRange
from pipetrain.data.loader import Loader
from pipetrain.data.token_ids import TokenRange
from pipetrain.run.build.data import Data
from pipetrain.run.label_check import check_known_labels
from pipetrain.seeding import python_generators_kept

_SECONDS = 0.5
"""For a split."""


def check_samples(settings: Settings, data: Data, labels: LabelRange | None, tokens: TokenRange | None) -> None:
    """Looks at all labels that can be had without reading samples, and reads some where only that can tell more.

    Files may be damaged, and the model may not know a label or a token id. Samples for which there is no time are
    checked when they are read.

    Raises:
        ConfigError: a label or token id is out of range.
        DataError: a sample cannot be read.
    """
    splits = {"train": data.train, "eval": data.evaluation} if settings.eval.every_epochs else {"train": data.train}
    for split, loader in splits.items():
        fetch = _fetch(loader, labels and labels.of(split), tokens and tokens.of(split))
        if fetch.inputs or fetch.targets:
            _read_some(fetch, loader.samples_per_epoch)


def _fetch(loader: Loader, labels: LabelRange | None, tokens: TokenRange | None) -> Fetch:
    """Reads what must be read of a split: inputs, targets, both or neither."""
    files = bool(getattr(loader.dataset, "reads_files", False))
    unknown_labels = labels is not None and not check_known_labels(loader, labels)
    unknown_tokens = tokens is not None and tokens.known is None
    return Fetch(
        loader.dataset,
        loader.seed,
        inputs=files or unknown_tokens,
        targets=files or unknown_labels,
        labels=labels,
        tokens=tokens,
    )


def _read_some(fetch: Fetch, samples: int) -> None:
    """Reads the first samples, as many as there is time for."""
    end = time.monotonic() + _SECONDS
    # nor may the numbers that a data set draws elsewhere depend on the time
    with python_generators_kept():
        for index in range(samples):
            fetch(0, [index])
            if time.monotonic() > end:
                break
