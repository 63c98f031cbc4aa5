"""`pipetrain eval RUN`: the metrics of a checkpoint on the evaluation set, computed in one process."""

import json
from pathlib import Path

import torch

from pipetrain.executors.evaluation import evaluate_model
from pipetrain.losses import on_device
from pipetrain.run import checkpoint
from pipetrain.run.build import build_chain, build_data, build_loss
from pipetrain.run.preflight import device_of
from pipetrain.tensors import Tensors
from pipetrain.tracking.run_directory import RunDirectory


def evaluate(run: Path, step: int | None, overrides: list[str]) -> None:
    """Prints the metrics as one line of JSON.

    Raises:
        ConfigError: there is no such run or checkpoint, or an override is wrong.
    """
    folder = checkpoint.at_step(run, step)
    settings = RunDirectory(run).stored_settings(overrides)
    device = torch.device(device_of(settings.device))
    data = build_data(settings)
    chain = build_chain(settings.model, data.dataset, settings.seed)
    chain.module.load_state_dict(checkpoint.whole_state(folder, chain))
    chain.module.to(device)
    for layer in chain.layers:
        layer.eval()

    @torch.no_grad()
    def compute(inputs: Tensors) -> Tensors:
        outputs = chain(*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    metrics = evaluate_model(data.evaluation, compute, on_device(build_loss(settings), device), device)
    print(json.dumps({"step": checkpoint.load_progress(folder)["step"], **metrics}))
