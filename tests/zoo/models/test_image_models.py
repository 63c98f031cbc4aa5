"""Every image model, cut anywhere, under PipeDream and PipeOptim: both executors give equal bits."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from support.equal_bits import PARTS
from support.worker_pool import distributed, job, phase, plan_of, simulated

from pipetrain.runner.config.choices import names_of, section
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.training.components.data import build_dataset
from pipetrain.runner.training.components.model import build_model

PHASES = [phase("pipedream", steps=2), phase("pipeoptim", steps=2)]
DATA = {
    "_target_": "pipetrain.zoo.data.images.synthetic.synthetic_images",
    "channels": 3,
    "classes": 4,
    "size": 16,
    "train": 16,
    "eval": 4,
}
WITH_HEADS = {"googlenet_with_heads": {**section("model", "googlenet"), "auxiliary": True}}
IMAGE_MODELS = {
    name: content
    for name, content in ((name, section("model", name)) for name in names_of("model"))
    if "channels" in Target.of("model", content).parameters()
}
LARGE = {"alexnet", "vgg16", "resnet101", "resnet152", "resnet152_cifar", "resnet224", "resnet362"}
"""Made by the builders of smaller ones, and they take as long as all of these together."""


def run_of(folder, name, content, num_stages):
    """Four steps, two under each method, the layers spread evenly."""
    each = job(
        folder / name,
        "pipedream",
        num_stages,
        model=content,
        dataset=DATA,
        optimizer={"_target_": "torch.optim.SGD", "lr": 0.01},
        train={"epochs": 1, "batch_size": 4},
        phases=PHASES,
    )
    with torch.device("meta"):
        layers = len(build_model(each.settings, build_dataset(each.settings.dataset, each.settings.seed)))
    cuts = [layers * r // num_stages for r in range(num_stages + 1)]
    return replace(each, plan=plan_of(list(pairwise(cuts))))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rest", PARTS)
@pytest.mark.parametrize("stages", [2, 4])
def test_every_image_model_has_equal_bits_in_both_executors(tmp_path, stages, rest):
    """Each on two stages or on four, a third of the models in `make test-slow`."""
    small = {**{name: IMAGE_MODELS[name] for name in sorted(set(IMAGE_MODELS) - LARGE)}, **WITH_HEADS}
    chosen = [k for k in range(len(small)) if k % 2 == stages // 4 and (k % 3 != 0) == rest]
    models = {name: small[name] for k, name in enumerate(small) if k in chosen}
    jobs = {name: run_of(tmp_path / "distributed", name, content, stages) for name, content in models.items()}
    theirs = dict(zip(jobs, distributed(list(jobs.values())), strict=True))
    differ = []
    for name, content in models.items():
        ours = simulated(run_of(tmp_path / "simulated", name, content, stages))
        assert ours["steps"] == 4
        if any(ours[bits] != theirs[name][bits] for bits in ("weights_sha256", "loss_sha256")):
            differ.append(name)
    assert differ == []
