"""Trains a small model as two pipeline stages under PipeDream, and shows what asynchrony does to its weights.

`python examples/two_stages.py`. Both stages are in this process; the method, the schedule and the bounds below are all
that has to change for another pipeline. Stage 0 starts the forward of the next minibatch before it has the gradient of
the last one: its weights are one update stale. PipeDream stashes them, so that the backward reads them again.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from pipetrain import (
    DrainInterval,
    Loader,
    OptimizerFactory,
    PipelineRules,
    RunHooks,
    Training,
    build_pipeline,
    chain_of,
)
from pipetrain.engine.losses import CrossEntropy, StepLoss
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.schedules.one_f_one_b import OneFOneB

SAMPLES, FEATURES, CLASSES = 512, 16, 4
BATCH_SIZE, MICROBATCHES, EPOCHS = 32, 1, 5


def data() -> TensorDataset:
    """Points around one center for each class."""
    labels = torch.arange(SAMPLES) % CLASSES
    centers = 0.6 * torch.randn(CLASSES, FEATURES)
    return TensorDataset(centers[labels] + torch.randn(SAMPLES, FEATURES), labels)


def main() -> None:
    """Trains, and prints the loss of each epoch and what each stage has measured."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    samples = data()

    # the model as a chain of layers: stage 0 has the first two, stage 1 the rest
    chain = chain_of(nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)))
    bounds = [(0, 2), (2, len(chain))]

    # when each stage does what, and with which weights
    rules = PipelineRules(OneFOneB(), PipeDream(), num_stages=len(bounds), num_microbatches=MICROBATCHES)

    losses: list[float] = []

    def on_step(_minibatch: int, loss: StepLoss) -> None:
        losses.append(loss.mean.item())

    optimizer = OptimizerFactory(
        build=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        rate=lambda update: 0.05 * 0.99**update,
    )
    pipeline = build_pipeline(chain, bounds, rules, Training(optimizer, CrossEntropy()), RunHooks(on_step))

    loader = Loader(samples, batch_size=BATCH_SIZE, microbatches=MICROBATCHES)
    steps = len(loader)
    for epoch in range(EPOCHS):
        # the pipeline drains at the end of each epoch
        pipeline.train(loader, DrainInterval(epoch, first=0, last=steps, start=epoch * steps))
        print(f"epoch {epoch + 1}  loss {sum(losses[-steps:]) / steps:.4f}")

    print("evaluation", {name: round(value, 4) for name, value in pipeline.evaluate(loader).items()})
    for stage in pipeline.stages:
        report = stage.report()
        stale = f"forward {report['forward_staleness']}, backward {report['backward_staleness']}"
        print(f"stage {stage.index}  staleness {stale}, weight versions {report['weight_versions_max']}")


if __name__ == "__main__":
    main()
