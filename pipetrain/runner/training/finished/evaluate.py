"""`pipetrain eval RUN`: the metrics of a checkpoint on the evaluation set, computed in one process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipetrain.data.loader import Loader
from pipetrain.engine.arithmetic import switched
from pipetrain.engine.executors.evaluation import evaluate_model
from pipetrain.engine.executors.feed import Uploads
from pipetrain.engine.losses import on_device
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.stateful_layer import carrying_state
from pipetrain.engine.tensors import Tensors
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.tracking.stored_settings import Override, check_read, stored_settings
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.store import Selection
from pipetrain.runner.training.components.arithmetic import build_arithmetic
from pipetrain.runner.training.components.data import build_dataset, evaluation_loader
from pipetrain.runner.training.components.loss import build_loss, build_metrics
from pipetrain.runner.training.components.machine import device_of
from pipetrain.runner.training.components.model import check_stateful_data
from pipetrain.runner.training.whole_model import check_data_of_run, load_whole_model, whole_model_metrics

_CALLED = ("dataset", "model", "loss", "metrics")
_READ = (
    *("device", "threads", "eval.batch_size", "eval.decode", "eval.beam_width"),
    *("eval.length_penalty", "eval.length_penalty_form"),
)


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation.

    Attributes:
        model, dataset: names of the choices, or paths of the targets.
        weights: which ones were evaluated; None if the checkpoint has no averages.
        metrics: `loss`, and metrics in percent.
        others: metrics on other scales: of the whole model, such as `bleu`, and of the section `metrics`.
        signatures: metric -> how it was computed, if that is known.
        texts: generated, in the order of the samples, each with its references.
    """

    checkpoint: Path
    step: int
    model: str
    dataset: str
    samples: int
    metrics: Mapping[str, float]
    weights: str | None = None
    others: Mapping[str, float] = field(default_factory=dict)
    signatures: Mapping[str, str] = field(default_factory=dict)
    texts: Sequence[tuple[str, Sequence[str]]] = ()


def evaluate(selection: Selection, overrides: Sequence[Override] = (), *, trust: bool = False) -> Evaluation:
    """Evaluates a checkpoint under its run's settings, with changes on top; `trust` as in `stored_settings`.

    Raises:
        ConfigError: there is no such run or checkpoint, or a change is wrong.
    """
    check_read(overrides, _CALLED, _READ)
    settings = stored_settings(selection.run, _CALLED, overrides, trust=trust)
    folder = selection.checkpoint()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    dataset = build_dataset(settings.dataset, settings.seed)
    loader = evaluation_loader(settings, dataset)
    check_data_of_run(folder, loader, overrides)
    chain = load_whole_model(settings, dataset, folder, raw=selection.raw)
    device, texts = torch.device(device_of(settings.device)), list[tuple[str, Sequence[str]]]()
    with switched(device.type, deterministic=settings.deterministic, tf32=settings.train.tf32):
        decoded = whole_model_metrics(settings, dataset, chain, device, texts=texts)
        metrics = _metrics(settings, dataset, chain, loader, device)
        others = {name: metrics[name] for name in settings.metrics}
        if decoded is not None:
            others |= decoded.metrics(chain)
    return Evaluation(
        checkpoint=folder,
        step=store.load_progress(folder)["step"],
        model=_name(settings, "model", settings.model.target.path),
        dataset=_name(settings, "dataset", settings.dataset.target.path),
        samples=sum(loader.sizes(0)),
        weights=contents.averages_note(folder, raw=selection.raw),
        metrics={name: value for name, value in metrics.items() if name not in settings.metrics},
        others=others,
        signatures={} if decoded is None else decoded.signatures,
        texts=texts,
    )


def _name(settings: Settings, group: str, path: str) -> str:
    """Choice of a group; for custom, the path of its target."""
    choice = settings.choices.get(group, "custom")
    return path if choice == "custom" else choice


def _metrics(
    settings: Settings, dataset: Any, chain: LayerChain, loader: Loader, device: torch.device
) -> Mapping[str, float]:
    """The loss, its metrics and further ones over all that `loader` reads."""
    loss, metrics = build_loss(settings.loss, dataset), build_metrics(settings.metrics)
    arithmetic = build_arithmetic(settings.train)

    @torch.no_grad()
    def compute(inputs: Tensors) -> Tensors:
        with arithmetic.computing(device):
            outputs = chain(*arithmetic.cast_inputs(inputs))
        return arithmetic.cast_outputs(outputs if isinstance(outputs, tuple) else (outputs,))

    check_stateful_data(chain, {"eval": loader})
    with carrying_state(nn.ModuleList(chain.layers)):
        return evaluate_model(loader, compute, on_device(loss, device), Uploads(device), metrics)
