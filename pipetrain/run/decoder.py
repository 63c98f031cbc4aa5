"""Metrics that need the whole model in one process, such as BLEU of generated texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from pipetrain.config.settings import Settings
from pipetrain.decoding import DecodingOptions, MetricValue
from pipetrain.errors import ConfigError
from pipetrain.executors.admission_gate import BrokenOffError
from pipetrain.executors.hooks import RunHooks
from pipetrain.models.chain import LayerChain, assemble
from pipetrain.run.builders.data import evaluation_batch_size
from pipetrain.seeding import key

_NO_HOOKS = RunHooks()


class GeneratedText(NamedTuple):
    """A text, and what it is compared with."""

    text: str
    references: Sequence[str]


@dataclass
class Decoder:
    """Metrics that a data set computes from the whole model.

    Attributes:
        chain: the model; of its weights and buffers only the names count.
        decoding: the data set's own, with `measure`, and `metrics`: the names of what it measures.
        options: how to decode.
        seed: of what the data set draws at random.
        hooks: called with the progress; decoding ends when their gate ends the run.
        aliases: further name of a tied tensor -> the one that stages know it by.
        signatures: metric -> how it was computed, of the last time.
    """

    chain: LayerChain
    decoding: Any
    options: DecodingOptions
    seed: int = 0
    hooks: RunHooks = _NO_HOOKS
    aliases: Mapping[str, str] = field(default_factory=dict)
    signatures: Mapping[str, str] = field(default_factory=dict)

    def on(self, device: torch.device, hooks: RunHooks = _NO_HOOKS) -> Self:
        """The same on another device, for others to hear of."""
        return replace(self, options=replace(self.options, device=device), hooks=hooks)

    def keeping(self, texts: list[GeneratedText]) -> Self:
        """The same, which adds the texts that it generates to a list."""

        def keep(found: Sequence[str], references: Sequence[Sequence[str]]) -> None:
            texts.extend(map(GeneratedText, found, references))

        return replace(self, options=replace(self.options, on_texts=keep))

    def metrics_with(self, state: Mapping[str, Tensor]) -> dict[str, float]:
        """The metrics of the model with the weights and buffers of `state`.

        Raises:
            BrokenOffError: the run is to end.
            ConfigError: what the data set returns are no metrics.
        """
        self.hooks.on_progress("assembling the model")
        whole = {**state, **{name: state[first] for name, first in self.aliases.items()}}
        return self.metrics(assemble(self.chain, whole, self.options.device))

    def metrics(self, model: LayerChain) -> dict[str, float]:
        """The metrics of an assembled model; random draws of the data set affect nothing else.

        Raises:
            BrokenOffError: the run is to end.
            ConfigError: what the data set returns are no metrics.
        """
        on_device = self.options.device.type == "cuda"
        with torch.random.fork_rng([self.options.device] if on_device else []):
            torch.manual_seed(key(self.seed))
            found = self.decoding.measure(model, replace(self.options, on_progress=self._progress))
        if not isinstance(found, Mapping) or set(found) != set(self.decoding.metrics):
            named = f"{', '.join(self.decoding.metrics)} by name"
            shown = ", ".join(found) if isinstance(found, Mapping) else f"a {type(found).__name__}"
            raise ConfigError(f"dataset: `decoding.measure` must return {named}, not {shown}")
        self.signatures = {name: each.signature for name, each in found.items() if isinstance(each, MetricValue)}
        return {name: float(each.value if isinstance(each, MetricValue) else each) for name, each in found.items()}

    def _progress(self, words: str) -> None:
        if self.hooks.gate.ends:
            raise BrokenOffError
        self.hooks.on_progress(words)


def decoder_of(settings: Settings, dataset: Any, chain: LayerChain) -> Decoder | None:
    """Decoder on the CPU; None if the data set has none, it cannot decode this model, or it is switched off.

    Args:
        settings: of the run.
        dataset: of the run.
        chain: the model.

    Raises:
        ConfigError: the data set's `decoding` is none.
    """
    asked, decoding = settings.eval, getattr(dataset, "decoding", None)
    if decoding is None or not asked.decode or problem_of(decoding, chain) is not None:
        return None
    options = DecodingOptions(
        asked.beam_width,
        asked.length_penalty,
        asked.length_penalty_form,
        evaluation_batch_size(settings),
        settings.dataset.limit,
    )
    # read now: from its first step on, a stage lends the modules of tied weights tensors of its own
    return Decoder(chain, decoding, options, settings.seed, aliases=chain.aliases())


def decoded_metrics(settings: Settings, dataset: Any, chain: LayerChain) -> Sequence[str]:
    """The metrics that evaluations take of the whole model, by name.

    Raises:
        ConfigError: the data set's `decoding` is none.
    """
    decoder = decoder_of(settings, dataset, chain)
    return () if decoder is None else tuple(decoder.decoding.metrics)


def problem_of(decoding: Any, chain: LayerChain) -> str | None:
    """Why a data set cannot decode with a model; None if nothing speaks against it.

    Raises:
        ConfigError: the data set's `decoding` lacks `measure` or `metrics`.
    """
    for name in ("measure", "metrics"):
        if not hasattr(decoding, name):
            raise ConfigError(f"dataset: its `decoding` is a {type(decoding).__name__} without `{name}`")
    told: Callable[[LayerChain], str | None] | None = getattr(decoding, "problem", None)
    return None if told is None else told(chain)
