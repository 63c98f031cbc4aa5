"""Runs on splits in what a target returns."""

import pytest
from support.hugging_face import real, stand_in
from support.worker_pool import distributed, job, simulated


@pytest.mark.slow
@pytest.mark.parametrize("make", [stand_in, real])
def test_both_executors_train_on_a_dict_of_splits(tmp_path, make):
    make()  # skips without the library
    dataset = {"_target_": f"support.hugging_face.{make.__name__}", "target_key": "label"}
    model = {"_target_": "support.small_model.build", "channels": 1}
    # a process that this one forks may wait for a lock that another thread of the tests held
    jobs = [
        job(tmp_path / name, "pipedream", 2, dataset={**dataset, "workers": workers}, model=model)
        for name, workers in (("sim", 0), ("dist", 1))
    ]
    one, (other,) = simulated(jobs[0]), distributed(jobs[1:])
    assert one["loss_sha256"] == other["loss_sha256"]
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["steps"] == 12
