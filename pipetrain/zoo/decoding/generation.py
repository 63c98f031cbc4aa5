"""The texts that a model generates for the samples of a data set, and their metrics, BLEU and METEOR."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import zip_longest
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pipetrain.data.decoding import DecodingOptions, MetricValue
from pipetrain.data.libraries.imports import require
from pipetrain.engine.tensors import Tensors
from pipetrain.zoo.decoding.beam import SpecialTokens, WholeModel, beam_search


def bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> MetricValue:
    """BLEU from 0 to 100, with sacrebleu's signature, of detokenized texts; the number of references may differ."""
    from sacrebleu.metrics.bleu import BLEU  # takes a third of a second, which only those who decode shall wait

    metric = BLEU()
    score = metric.corpus_score(list(texts), [list(stream) for stream in zip_longest(*references)])
    return MetricValue(float(score.score), str(metric.get_signature()))


def meteor(texts: Sequence[str], references: Sequence[Sequence[str]]) -> MetricValue:
    """The mean of the texts' METEOR scores from 0 to 1, each of its best reference.

    Words are what blanks separate. Without WordNet's data only equal words and equal stems match.
    """
    from nltk.translate.meteor_score import meteor_score  # takes seconds, which only those who decode shall wait

    words, matches = _word_net()
    scores = [
        meteor_score([reference.split() for reference in own], text.split(), wordnet=words)
        for text, own in zip(texts, references, strict=True)
    ]
    return MetricValue(statistics.fmean(scores), f"nltk:{version('nltk')}|matches:{matches}")


class _NoSynonyms:
    """A dictionary in which no word has a synonym, in WordNet's place."""

    def synsets(self, _word: str) -> Sequence[Any]:
        return ()


def _word_net() -> tuple[Any, str]:
    from nltk.corpus import wordnet

    try:
        wordnet.ensure_loaded()
    except LookupError:
        return _NoSynonyms(), "exact,stem"
    return wordnet, "exact,stem,synonym"


Metric = Callable[[Sequence[str], Sequence[Sequence[str]]], MetricValue]
METRICS: Mapping[str, Metric] = {"bleu": bleu, "meteor": meteor}
"""By name: (texts, the references of each) -> the metric."""
_ALWAYS = 10


@dataclass(frozen=True)
class Generation:
    """Sources that texts are generated from, and the references that they are compared with.

    Attributes:
        sources: the encoder's inputs of each sample, unpadded (positions, …).
        references: the texts that each sample could have, as plain text.
        detokenize: token ids without special tokens -> plain text.
        longest: tokens of a generated text at most.
        metrics: of `METRICS`.
        collate: the sources of some samples -> those of a minibatch (samples, positions, …); None: padded with the
            padding token.
        longest_by_source: positions for each position of its source at most, plus ten.
    """

    sources: Sequence[Tensors]
    references: Sequence[Sequence[str]]
    detokenize: Callable[[list[int]], str]
    special: SpecialTokens
    longest: int
    metrics: Sequence[str] = ("bleu",)
    collate: Callable[[list[Tensors]], Tensors] | None = None
    longest_by_source: float = math.inf

    def problem(self, model: WholeModel) -> str | None:
        """Why no text can be generated from a model, None if it can be.

        Raises:
            ConfigError: a metric needs a package that is not installed.
        """
        if "meteor" in self.metrics:
            require("eval.decode=true: METEOR", ("nltk",), "video", "; or set eval.decode=false")
        missing = [name for name in ("begin", "step") if not callable(getattr(model.module, name, None))]
        if not missing:
            return None
        return f"{type(model.module).__name__} has no method {' and no '.join(missing)} to generate text with"

    def measure(self, model: WholeModel, options: DecodingOptions) -> dict[str, MetricValue]:
        """The metrics of a model's texts, by name."""
        texts = self.texts(model, options)
        references = self.references[: len(texts)]
        options.on_texts(texts, references)
        found = {name: METRICS[name](texts, references) for name in self.metrics}
        return {name: MetricValue(value, f"{how}|{options.search}") for name, (value, how) in found.items()}

    def texts(self, model: WholeModel, options: DecodingOptions) -> list[str]:
        """The text that a model generates for each of the first `options.limit` samples."""
        generator: Any = model.module  # a Generator, as `problem` checks
        samples = range(len(self.sources) if options.limit is None else min(options.limit, len(self.sources)))
        texts = [""] * len(samples)
        for indices in self._batches(samples, options):
            sources = [self.sources[i] for i in indices]  # which may be read from a file
            source = tuple(tensor.to(options.device) for tensor in self._collated(sources))
            longest = [min(self.longest, self.longest_by_source * len(first) + _ALWAYS) for first, *_ in sources]
            for i, ids in zip(
                indices, beam_search(generator, source, self.special, list(map(int, longest)), options), strict=True
            ):
                texts[i] = self.detokenize(ids)
        return texts

    def _batches(self, samples: Sequence[int], options: DecodingOptions) -> Iterator[list[int]]:
        """The samples that are decoded together, which have about the same length."""
        order = sorted(samples, key=lambda i: len(self.sources[i][0]))
        starts = range(0, len(order), options.batch_size)
        for number, start in enumerate(starts, start=1):
            options.on_progress(f"decoding {number} of {len(starts)}")
            yield order[start : start + options.batch_size]

    def _collated(self, sources: list[Tensors]) -> Tensors:
        if self.collate is not None:
            return self.collate(sources)
        columns: list[list[Tensor]] = [list(column) for column in zip(*sources, strict=True)]
        return tuple(pad_sequence(column, batch_first=True, padding_value=self.special.padding) for column in columns)
