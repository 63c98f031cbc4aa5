"""Runs of a method with a running statistic that the package does not know."""

from support.equal_bits import assert_same, both_ways
from support.worker_pool import job, simulated

from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.contents import Kind

EPOCHS = {"train": {"epochs": 2}, "checkpoint": {"every_epochs": 1}}


def polyak(folder, stages=2, resume=None):
    method = {"_target_": "support.polyak.Polyak"}
    return job(folder, "naive_async", stages, resume=resume, method=method, **EPOCHS)


def test_own_statistic_resumes_with_equal_bits(tmp_path):
    whole = simulated(polyak(tmp_path / "whole"))
    half = store.checkpoints(tmp_path / "whole")[0]
    again = simulated(polyak(tmp_path / "again", resume=half))
    assert_same(again, whole)
    plain = simulated(job(tmp_path / "plain", "naive_async", 2, **EPOCHS))
    assert plain["weights_sha256"] != whole["weights_sha256"]


def test_own_statistic_is_saved_under_whole_model_names(tmp_path):
    simulated(polyak(tmp_path / "run"))
    folder = store.checkpoints(tmp_path / "run")[-1]
    weights = contents.load_tensors(folder, Kind.OPTIMIZER)
    found = contents.load_tensors(folder, Kind.STATISTIC)
    assert {key for values in found.values() for key in values} == {"polyak"}
    assert found.keys() == weights.keys()


def test_another_partition_loads_the_statistic(tmp_path):
    simulated(polyak(tmp_path / "two"))
    half = store.checkpoints(tmp_path / "two")[0]
    assert simulated(polyak(tmp_path / "three", 3, half))["steps"] == 12


def test_both_executors_give_equal_bits(tmp_path):
    both_ways([polyak(tmp_path)])
