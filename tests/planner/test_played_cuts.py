"""Cuts for stages that share cores."""

import itertools
from dataclasses import replace

import pytest
from support.plans import chain, layer
from support.worker_pool import settings

from pipetrain.planner import played_cuts
from pipetrain.planner.planning import Planner
from pipetrain.run.profiling.predict import ProfiledRun

SGD = {"_target_": "torch.optim.SGD", "lr": 0.1}
PROFILE = replace(
    chain(*(layer(each, sent) for each, sent in ((3, 1), (1, 6), (2, 3), (4, 1), (1, 5), (2, 2), (3, 4), (2, 0)))),
    batch_size=4,
)


def asked(case, **changes):
    topology = {"devices": 3, "gigabytes_per_s": [4e-9], **changes.pop("topology", {})}
    return settings(
        case, optimizer=SGD, topology=topology, planner={"straight": True}, train={"batch_size": 4}, **changes
    )


def predicted_s(case, every):
    """By `pipetrain predict` on two cores, of all these cuts."""
    partition = {"_target_": "pipetrain.planner.partition_rules.Explicit", "boundaries": [1, 2]}
    run = ProfiledRun.of(asked(case, partition=partition, topology={"cores": 2}), profile=PROFILE)
    for cuts in every:
        stages = tuple(tuple(range(*ends)) for ends in itertools.pairwise([0, *cuts, 8]))
        ((_, prediction),) = replace(run, cut=replace(run.cut, stages=stages)).predictions()
        yield prediction.time_per_minibatch_s


def planned(case, cores):
    plan = Planner.of(PROFILE, asked(case, topology={"cores": cores})).best()
    return [stage.layers[0] for stage in plan.stages[1:]], plan.time_per_minibatch_s


@pytest.mark.parametrize("case", ["gpipe", "pipedream"])
def test_cuts_on_shared_cores_are_the_fastest_of_all_by_prediction(case):
    every = list(itertools.combinations(range(1, 8), 2))
    every = dict(zip(every, predicted_s(case, every), strict=True))
    cuts, time_s = planned(case, 2)
    assert time_s == pytest.approx(min(every.values()))
    assert every[tuple(cuts)] == pytest.approx(time_s)
    alone, _ = planned(case, 3)
    assert every[tuple(alone)] > time_s  # which the slowest stage or link alone does not tell


def test_cuts_too_many_to_try_are_moved_one_by_one_to_faster_ones(monkeypatch):
    alone, _ = planned("gpipe", 3)
    monkeypatch.setattr(played_cuts, "_FEW", 0)
    cuts, time_s = planned("gpipe", 2)
    predicted, before = predicted_s("gpipe", [cuts, alone])
    assert time_s == pytest.approx(predicted)
    assert time_s < before
