"""Whether samples are loaded as fast as stages train on them: samples per second of both, in one run.

`make bench`, or `python benchmarks/loading.py`. A row is a data set with the settings of its loader. Its workers, if
any, and the stage share the cores of this machine, as in a run. Each number is the median of some rounds, of
minibatches behind the first ones, which workers have read ahead by the time that the first one is there.

    loader   the first stage's minibatches, taken as fast as they come
    stage    forward and backward of the first of two stages (`partition=even`), one thread, on a minibatch in memory
    both     the stage trains on what the loader reads; equal to `stage` where nothing waits for data
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from pipetrain.data.loader import Loader
from pipetrain.runner.config.composition import composed
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.rules import Even
from pipetrain.runner.partition.run_plan import make_plan
from pipetrain.runner.training.components.data import build_data
from pipetrain.runner.training.components.model import build_model

WORKERS = (0, 1, 2)
RESULT = Path(__file__).resolve().parents[1] / "results" / "bench" / "loading.json"
_FILES = 1536
_PREFETCHED = 2
"""Minibatches that each worker reads ahead by default."""


@dataclass(frozen=True)
class Workload:
    """What is loaded, and what trains on it.

    Attributes:
        what: in words, for the report.
        words: settings of `pipetrain run`; {root} is the folder of the picture files.
        minibatches: of a round.
    """

    what: str
    words: Sequence[str]
    minibatches: int


_PICTURES = ("dataset=image_folder", "dataset.root={root}", "dataset.augment=true", "model.classes=1000")
WORKLOADS = {
    "resnet18": Workload(
        "JPEG files of 256 pixels: decode, scale to 224, crop, flip; ResNet-18",
        (*_PICTURES, "model=resnet18", "dataset.size=224", "train.batch_size=16"),
        16,
    ),
    "resnet20": Workload(
        "JPEG files of 256 pixels: decode, scale to 32, crop, flip; ResNet-20",
        (*_PICTURES, "model=resnet20", "dataset.size=32", "train.batch_size=64"),
        24,
    ),
    "fashion": Workload(
        "Fashion-MNIST in memory: crop, flip; ResNet-20",
        ("model=resnet20", "dataset=fashion_mnist_mini", "dataset.augment=true", "train.batch_size=64"),
        24,
    ),
    "gpt": Workload("tokens of Jane Austen's novels in memory; gpt", ("model=gpt", "train.batch_size=16"), 32),
}


def write_pictures(root: Path) -> None:
    """Photographs are smooth and noisy, and so are these: noise decodes slower than most, a plain color faster."""
    draws = np.random.default_rng(0)
    for split, count in (("train", _FILES), ("test", 2)):
        for number in range(count):
            folder = root / split / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            small = draws.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            picture = Image.fromarray(small).resize((256, 256), Image.Resampling.BICUBIC)
            picture.save(folder / f"{number}.jpg", quality=90)


class Bench:
    """A workload with so many workers.

    Args:
        workload: the data and the model.
        root: the folder of the picture files.
        workers: of the loader.
    """

    def __init__(self, workload: Workload, root: Path, workers: int) -> None:
        words = [word.format(root=root) for word in workload.words]
        settings = composed([*words, "partition.stages=2", f"dataset.workers={workers}"])
        data = build_data(settings)
        self._loader: Loader = data.train
        self._example = data.example
        self._samples = settings.train.batch_size
        self._minibatches = workload.minibatches
        self._ahead = max(1, workers * (1 + _PREFETCHED))
        self._stage = _first_stage(settings, data.dataset, self._example)

    def loader(self) -> float:
        return self._speed(lambda _inputs: None, self._read())

    def stage(self) -> float:
        return self._speed(self._train, iter([self._example] * self._minibatches))

    def both(self) -> float:
        return self._speed(self._train, self._read())

    def _read(self) -> Iterator[tuple[Tensor, ...]]:
        return self._loader.inputs(0, 0, self._minibatches)

    def _train(self, inputs: tuple[Tensor, ...]) -> None:
        for layer in self._stage:
            outputs = layer(*inputs)
            inputs = outputs if isinstance(outputs, tuple) else (outputs,)
        trained = [tensor for tensor in inputs if tensor.requires_grad]
        torch.autograd.backward(trained, [torch.ones_like(tensor) for tensor in trained])
        self._stage.zero_grad()

    def _speed(self, use: Callable[[tuple[Tensor, ...]], None], minibatches: Iterator[tuple[Tensor, ...]]) -> float:
        for inputs in islice(minibatches, self._ahead):
            use(inputs)
        rest, began = 0, time.perf_counter()
        for inputs in minibatches:
            use(inputs)
            rest += 1
        return rest * self._samples / (time.perf_counter() - began)


def _first_stage(settings: Settings, dataset: Any, example: tuple[Tensor, ...]) -> nn.ModuleList:
    chain = build_model(settings, dataset)
    first = make_plan(chain, Even(2), example).stages[0]
    return nn.ModuleList(chain.layers[first.first : first.last])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder))
        rows = {name: _row(workload, Path(folder), rounds) for name, workload in WORKLOADS.items()}
    result = {
        "what": "samples per second, the median of the rounds",
        "date": date.today().isoformat(),
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "rounds": rounds,
        "rows": rows,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nwritten to {RESULT}")


def _row(workload: Workload, root: Path, rounds: int) -> dict[str, Any]:
    """The speeds of a workload; those with other numbers of workers take turns, so that a busy machine slows all."""
    benches = {workers: Bench(workload, root, workers) for workers in WORKERS}
    print(f"\n{workload.what}\n{'workers':>9}{'loader':>10}{'stage':>10}{'both':>10}  samples/s")
    seen = [
        {workers: (bench.loader(), bench.stage(), bench.both()) for workers, bench in benches.items()}
        for _ in range(rounds)
    ]
    found = {}
    for workers in WORKERS:
        speeds = [statistics.median(each) for each in zip(*(each[workers] for each in seen), strict=True)]
        print(f"{workers:9}{''.join(f'{speed:10.0f}' for speed in speeds)}", flush=True)
        found[f"workers={workers}"] = dict(zip(("loader", "stage", "both"), map(round, speeds), strict=True))
    return {"what": workload.what, **found}


if __name__ == "__main__":
    main()
