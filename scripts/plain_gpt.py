"""Trains the language model of a finished run with a plain PyTorch loop, and prints both perplexities.

python scripts/plain_gpt.py RUN

The loop has nothing of pipetrain's but the model, the data and their order: `torch.optim`, `backward()` and a rate for
each step. RUN must be of one stage or a synchronous method, and of a model without dropout, for both to agree.
"""

import json
import math
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from pipetrain.runner.config.settings import Settings
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.stored_settings import stored_settings
from pipetrain.runner.training.components.data import Data, build_data
from pipetrain.runner.training.components.learning_rate import build_rate
from pipetrain.runner.training.components.model import build_model
from pipetrain.runner.training.components.optimizer import build_torch_optimizer, parameter_groups
from pipetrain.runner.training.timetable import timetable_of

_CALLED = ("dataset", "model", "optimizer", "lr_schedule")


def main(run: Path) -> None:
    """Prints what the loop and the run came to, and how long each took."""
    settings = stored_settings(RunDirectory(run), _CALLED)
    torch.set_num_threads(settings.threads or 1)
    data = build_data(settings)
    began = time.perf_counter()
    model = trained(settings, data)
    seconds = time.perf_counter() - began
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    print("| | perplexity | training, s |", "| --- | ---: | ---: |", sep="\n")
    print(f"| a plain loop, seed {settings.seed} | {perplexity(model, data):.3f} | {seconds:.0f} |")
    print(f"| `{run}`, {summary['method']} | {summary['final']['perplexity']:.3f} | {summary['train_s']:.0f} |")


def trained(settings: Settings, data: Data) -> torch.nn.Module:
    """The model after as many steps as the run takes."""
    timetable = timetable_of(settings, len(data.train))
    rate = build_rate(settings, timetable)
    model = build_model(settings, data.dataset).module
    groups = parameter_groups(settings.optimizer, dict(model.named_parameters()))
    optimizer = build_torch_optimizer(settings.optimizer, groups)
    base = optimizer.defaults["lr"]
    for group in optimizer.param_groups:
        group["lr"] = base * group.get("lr_scale", 1.0)
    schedule = LambdaLR(optimizer, lambda step: rate(step) / base)
    for step in range(timetable.total_steps):
        epoch, index = divmod(step, len(data.train))
        ((inputs,), (targets,)) = next(data.train.samples(epoch, index, index + 1))
        optimizer.zero_grad()
        smoothing = settings.loss.options.get("label_smoothing", 0.0)
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), label_smoothing=smoothing).backward()
        if settings.optimizer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.clip_norm)
        optimizer.step()
        schedule.step()
    return model


@torch.no_grad()
def perplexity(model: torch.nn.Module, data: Data) -> float:
    """That of the evaluation text."""
    model.eval()
    total, count = 0.0, 0
    for (inputs,), (targets,) in data.evaluation.samples(0):
        total += F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum").item()
        count += targets.numel()
    return math.exp(total / count)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
