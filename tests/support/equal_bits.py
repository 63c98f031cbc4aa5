"""The combinations that must have equal bits wherever their stages run."""

from dataclasses import replace

import pytest
from hydra.utils import get_object, instantiate
from support.methods import SYNCHRONOUS, MethodCase, takes
from support.worker_pool import distributed, job, simulated

from pipetrain.engine.schedules import ListSchedule
from pipetrain.engine.schedules.process_lists import ProcessSchedule
from pipetrain.runner.config.choices import choices_of
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint import store

TIED = {"model": {"_target_": "support.tied_model.build"}, "optimizer": {"clip_norm": 0.5}}
"""Two stages hold a copy of one weight."""
SCHEDULES = [
    choice
    for choice in choices_of("schedule")
    if issubclass(get_object(choice.content["_target_"]), ListSchedule)
    and not issubclass(get_object(choice.content["_target_"]), ProcessSchedule)
]
"""Those that run on any number of stages, one in each process."""
PARTS = [pytest.param(False, id="some"), pytest.param(True, id="rest", marks=pytest.mark.exhaustive)]
"""`make test-slow` takes some of the combinations, `make test-exhaustive` the others."""


def on_diagonal(k, stages, microbatches):
    """True for one of four N for each D; k numbers the pairs of a matrix."""
    return (k + stages + microbatches) % 4 == 0


def schedules_of(method):
    """Name -> settings of the schedules that the method goes with."""
    own = MethodCase.named(method).sections()["schedule"]
    family = get_object(own["_target_"]).family
    if method in SYNCHRONOUS:
        return {"own": own}  # under the others it is another of these methods
    return {each.name: each.content for each in SCHEDULES if get_object(each.content["_target_"]).family == family}


def runs_under(schedule, stages, microbatches):
    """True if the schedule with these settings takes so many stages and microbatches."""
    return takes(instantiate(schedule), stages, microbatches)


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


def assert_same(one, other, what=""):
    """Compares what summaries of runs with equal bits agree on; `what` says whose they are."""
    for field in ("weights_sha256", "loss_sha256", "steps", "final", "best"):
        assert one[field] == other[field], f"{what} {field}"


def both_ways(jobs, distribute=distributed):
    """(distributed, simulated) summaries of each job, compared; `distribute` gives the former."""
    pairs = []
    for each, ours in zip(jobs, distribute(jobs), strict=True):
        pairs.append((ours, simulated(replace(each, run=RunDirectory(each.run.path / "simulated")))))
        assert_same(*pairs[-1], each.run.path.name)
    return pairs


def same_resumed(folder, case, stages, **changes):
    """The summary of a simulated run; one resumed from its first checkpoint has its bits."""
    whole = simulated(job(folder / "whole", case, stages, **changes))
    half = store.checkpoints(folder / "whole")[0]
    assert_same(simulated(job(folder / "again", case, stages, resume=half, **changes)), whole)
    return whole
