"""The whole model in one process: loaded from a checkpoint, and the metrics that need it, such as BLEU."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.data.decoding import DecodingOptions, MetricValue
from pipetrain.data.interface import DataSet
from pipetrain.data.loader import Loader
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.admission_gate import BrokenOffError
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.losses import without_exchanges
from pipetrain.engine.models.chain import LayerChain, sharing_buffers
from pipetrain.engine.seeding import key
from pipetrain.runner.config.schema import EvalConfig
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.tracking.stored_settings import Override
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.components.arithmetic import build_arithmetic
from pipetrain.runner.training.components.data import evaluation_batch_size
from pipetrain.runner.training.components.machine import device_of
from pipetrain.runner.training.components.model import build_model

_NO_HOOKS = RunHooks()
_CPU = torch.device("cpu")


def load_whole_model(settings: Settings, dataset: Any, folder: Path, *, raw: bool = False) -> LayerChain:
    """The model of the checkpoint in `folder`, in evaluation mode, on the device of the settings.

    It has the averages of weights if there are any, unless `raw`.

    Raises:
        ConfigError: the weights are of another model, or the data set has another vocabulary.
    """
    store.check_vocabulary(folder, store.load_progress(folder), dataset)
    chain = build_model(settings, dataset)
    contents.check_model(folder, chain)
    chain.module.load_state_dict(contents.named_state(folder, averaged=not raw))
    with sharing_buffers(chain.module, *chain.layers):
        chain.module.to(torch.device(device_of(settings.device))).eval()
        build_arithmetic(settings.train).prepare(chain.module)
    for layer in chain.layers:
        layer.eval()
    return chain


def assemble(chain: LayerChain, state: Mapping[str, Tensor], device: torch.device) -> LayerChain:
    """A copy of the chain in evaluation mode that computes with other tensors; the chain itself stays as it is.

    The tensors of `state`, named as in `chain.module.state_dict()`, become the copy's own where they are on the device
    already, so that none is held twice; all names of a tied tensor have the same. What it lacks is the chain's.
    """
    copies: dict[int, Tensor] = {}
    made: dict[int, Tensor] = {}
    for name, tensor in chain.module.state_dict(keep_vars=True).items():
        if (value := state.get(name)) is not None:
            own = value.to(device).detach()
            if isinstance(tensor, nn.Parameter):
                own = nn.Parameter(own, requires_grad=tensor.requires_grad)  # as torch may take other kernels without
            copies[id(tensor)] = made.setdefault(id(value), own)
    whole = copy.deepcopy(chain, dict(copies))  # deepcopy takes what it finds in its second argument for the copy
    with sharing_buffers(whole.module, *whole.layers):
        whole.module.to(device).eval()
    for layer in whole.layers:
        layer.eval()
    return whole


def check_data_of_run(folder: Path, loader: Loader, overrides: Sequence[Override]) -> None:
    """Raises a ConfigError if a loader reads other samples than the run of a checkpoint, unless settings ask for it."""
    if not any(override.key.split(".")[0] == "dataset" for override in overrides):
        way_on = "a setting of dataset, such as dataset.limit=null, reads other data without this comparison"
        store.check_data(folder, store.load_progress(folder), {"eval": loader}, way_on)


@dataclass
class WholeModelMetrics:
    """Metrics that a data set computes from the whole model.

    Attributes:
        chain: the model; only the names of its weights and buffers count.
        decoding: attribute of the data set, with `measure`, `metrics`: the names of what it measures, and perhaps
            `lower_is_better`: those of them that fall as the model improves.
        seed: of the random draws of the data set.
        hooks: called with the progress; decoding ends when their gate ends the run.
        aliases: further name of a tied tensor -> the one that stages know it by.
        signatures: metric -> how it was computed the last time.
    """

    chain: LayerChain
    decoding: Any
    options: DecodingOptions
    seed: int = 0
    hooks: RunHooks = _NO_HOOKS
    aliases: Mapping[str, str] = field(default_factory=dict)
    signatures: Mapping[str, str] = field(default_factory=dict)

    def metrics_with(self, state: Mapping[str, Tensor]) -> dict[str, float]:
        """The metrics of the model with the weights and buffers of `state`; raises as `metrics`."""
        self.hooks.on_progress("assembling the model")
        whole = {**state, **{name: state[first] for name, first in self.aliases.items()}}
        return self.metrics(assemble(self.chain, whole, self.options.device))

    def metrics(self, model: LayerChain) -> dict[str, float]:
        """The metrics of an assembled model; random draws of the data set affect nothing else.

        Raises:
            BrokenOffError: the run is to end.
            ConfigError: the data set returns no metrics.
        """
        on_device = self.options.device.type == "cuda"
        with torch.random.fork_rng([self.options.device] if on_device else []), without_exchanges():
            torch.manual_seed(key(self.seed))
            values = self.decoding.measure(model, replace(self.options, on_progress=self._progress))
        if not isinstance(values, Mapping) or set(values) != set(self.decoding.metrics):
            named = f"{', '.join(self.decoding.metrics)} by name"
            returned = ", ".join(values) if isinstance(values, Mapping) else f"a {type(values).__name__}"
            raise ConfigError(f"dataset: `decoding.measure` must return {named}, not {returned}")
        self.signatures = {name: each.signature for name, each in values.items() if isinstance(each, MetricValue)}
        return {name: float(each.value if isinstance(each, MetricValue) else each) for name, each in values.items()}

    def _progress(self, words: str) -> None:
        if self.hooks.gate.ends:
            raise BrokenOffError
        self.hooks.on_progress(words)


def whole_model_metrics(
    settings: Settings,
    dataset: Any,
    chain: LayerChain,
    device: torch.device = _CPU,
    hooks: RunHooks = _NO_HOOKS,
    texts: list[tuple[str, Sequence[str]]] | None = None,
) -> WholeModelMetrics | None:
    """The metrics of a data set; None if it has none, cannot decode with this model, or is not to decode.

    They extend `texts` by each text that they generate, with its references.

    Raises:
        ConfigError: the `decoding` of the data set lacks `measure` or `metrics`, or lists unknown ones.
    """
    asked, decoding = settings.eval, DataSet(dataset).decoding
    if decoding is None or not asked.decode or problem_of(decoding, chain) is not None:
        return None
    options = DecodingOptions(
        asked.beam_width,
        asked.length_penalty,
        asked.length_penalty_form,
        evaluation_batch_size(settings),
        settings.dataset.limit,
        device=device,
    )
    if texts is not None:
        options = replace(options, on_texts=lambda *pairs: texts.extend(zip(*pairs, strict=True)))
    # aliases are read now: from its first step on, a stage puts other tensors into the modules of tied weights
    return WholeModelMetrics(chain, decoding, options, settings.seed, hooks, chain.aliases())


def decoded_metrics(asked: EvalConfig, dataset: Any, chain: LayerChain) -> tuple[tuple[str, ...], list[str]]:
    """Names of the metrics of generated texts, and a warning if evaluations generate none although the data set could.

    Raises:
        ConfigError: as `whole_model_metrics`.
    """
    decoding = DataSet(dataset).decoding
    if decoding is None or not asked.decode:
        return (), []
    if (problem := problem_of(decoding, chain)) is None:
        return tuple(decoding.metrics), []
    return (), [f"warning: evaluations generate no texts: {problem}"] if asked.every_epochs else []


def problem_of(decoding: Any, chain: LayerChain) -> str | None:
    """Why a data set cannot decode with a model; None if it can, as far as it knows.

    Raises:
        ConfigError: its `decoding` lacks `measure` or `metrics`, or its `lower_is_better` names none of them.
    """
    for name in ("measure", "metrics"):
        if not hasattr(decoding, name):
            raise ConfigError(f"dataset: its `decoding` is a {type(decoding).__name__} without `{name}`")
    lower = getattr(decoding, "lower_is_better", ())
    if isinstance(lower, str) or not set(lower) <= set(decoding.metrics):
        raise ConfigError(
            f"dataset: `decoding.lower_is_better` is {lower!r}; it must list names of `decoding.metrics`, which are "
            f"{', '.join(decoding.metrics)}"
        )
    problem: Callable[[LayerChain], str | None] | None = getattr(decoding, "problem", None)
    return None if problem is None else problem(chain)
