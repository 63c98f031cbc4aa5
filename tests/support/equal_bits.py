"""The combinations that must have equal bits wherever their stages run."""

import pytest
from hydra.utils import get_object
from support.methods import SYNCHRONOUS, MethodCase
from support.worker_pool import distributed, job, simulated

from pipetrain.config.choices import choices_of
from pipetrain.training.checkpoint import store

TIED = {"model": {"_target_": "support.tied_model.build"}, "optimizer": {"clip_norm": 0.5}}
"""Two stages hold a copy of one weight."""
SCHEDULES = [choice for choice in choices_of("schedule") if not choice.name.startswith("torch_")]
HALVES = [pytest.param(0, id="half"), pytest.param(1, id="rest", marks=pytest.mark.exhaustive)]
"""`make test-slow` takes every second combination, `make test-exhaustive` the others."""


def on_diagonal(k, stages, microbatches, half):
    """True for one of four N for each D, where every second D is in each half; k numbers the pairs of a matrix."""
    return (k + stages + microbatches) % 4 == 0 and (k // 4 + stages) % 2 == half


def schedules_of(method):
    """Name -> settings of the schedules that the method goes with."""
    own = MethodCase.named(method).sections()["schedule"]
    family = get_object(own["_target_"]).family
    if method in SYNCHRONOUS:
        return {"own": own}  # under the others it is another of these methods
    return {each.name: each.content for each in SCHEDULES if get_object(each.content["_target_"]).family == family}


REPLICAS = ((1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (2, 3, 1))
REPLICATED = [
    (counts, method, N)
    for counts in REPLICAS
    for method in ("pipedream", "pipeoptim", "gpipe", "pipemare")
    for N in (1, 2)
]


def replicated(counts, method, N, **changes):
    """(method, stages, settings) of an epoch with these replicas."""
    settings = {"partition": {"replicas": list(counts)}, "train": {"microbatches": N, "epochs": 1}, **changes}
    return method, len(counts), settings


def bits(summary):
    """The hashes on which runs with equal bits agree."""
    return summary["loss_sha256"], summary["weights_sha256"]


def same_everywhere(folder, case, stages, **changes):
    """The summary of a simulated run of two epochs; a distributed one and one resumed after the first have its bits."""
    changes = {"checkpoint": {"every_epochs": 1}, **changes}
    whole = simulated(job(folder / "whole", case, stages, **changes))
    (other,) = distributed([job(folder / "other", case, stages, **changes)])
    half = store.checkpoints(folder / "whole")[0]
    resumed = simulated(job(folder / "resumed", case, stages, resume=half, **changes))
    assert bits(other) == bits(whole) == bits(resumed)
    return whole
