"""Trains a model as two pipeline stages under PipeDream, with the engine alone.

`python examples/engine_torchrun.py` simulates both stages in one process;
`torchrun --nproc-per-node 2 examples/engine_torchrun.py` gives each a process of its own. The hashes are equal.
"""

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pipetrain.engine import OneFOneB, PipeDream, Pipeline

SAMPLES, FEATURES, CLASSES, EPOCHS = 512, 16, 4, 5


def loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    """Points around one center for each class, in an order that every process draws alike."""
    labels = torch.arange(SAMPLES) % CLASSES
    points = 0.6 * torch.randn(CLASSES, FEATURES)[labels] + torch.randn(SAMPLES, FEATURES)
    order = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(points, labels), batch_size=32, shuffle=True, generator=order)


def main() -> None:
    """Trains, evaluates, and prints a hash of the weights."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, CLASSES)
    )
    data = loader()
    pipeline = Pipeline(
        model,
        stages=2,
        schedule=OneFOneB(),
        method=PipeDream(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        loss=nn.CrossEntropyLoss(),
        device="cpu",
    )
    losses = [sum(found) / len(found) for found in (pipeline.train(data) for _ in range(EPOCHS))]
    result, measured, weights = pipeline.evaluate(data), pipeline.report(), pipeline.weights()
    if weights is not None:  # in the process of the last stage
        digest = hashlib.sha256(b"".join(weights[name].numpy().tobytes() for name in sorted(weights)))
        print("losses", *(f"{loss:.4f}" for loss in losses))
        print("evaluation", {name: round(value, 4) for name, value in result.items()})
        print("staleness", [stage["forward_staleness"] for stage in measured])
        print("weights", digest.hexdigest())
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
