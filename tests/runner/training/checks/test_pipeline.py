"""What a run with replicas cannot have, found before any process starts."""

import re

import pytest
from support import one_run
from support.one_run import EVEN

from pipetrain.engine.errors import ConfigError

ONE = {**EVEN, "stages": 1}


def prepared(tmp_path, replicas, partition=EVEN, **changes):
    return one_run.prepared(tmp_path, partition={**partition, "replicas": replicas}, **changes)


def test_prepared_run_has_process_per_replica_and_minibatch_use(tmp_path):
    found = prepared(tmp_path, [2, 1])
    assert found.placement.stages_of == ((0,), (0,), (1,))
    assert found.head()["replicas"] == [2, 1]
    assert found.notes == [
        "stage 0 has 2 replicas, and updates with the mean gradient of 2 minibatches",
        "partition.scale_lr=true: learning rates of the stages times 1, 0.5",
    ]


def test_one_replica_of_each_stage_is_as_none_said(tmp_path):
    assert prepared(tmp_path, [1, 1]).placement == prepared(tmp_path, None).placement


@pytest.mark.parametrize(
    ("replicas", "changes", "message"),
    [
        ([0, 1], {}, "partition.replicas=[0, 1]: must be a list"),
        (2, {}, "partition.replicas=2: must be a list"),
        ([2, 1, 1], {}, "partition.replicas=[2, 1, 1]: a number for each of 2 stages"),
        (
            [7, 1],
            {},
            "partition.replicas=[7, 1]: an epoch, after which the pipeline drains, has 6 minibatches, too few",
        ),
        ([2, 1], {"train": {"precision": "fp16"}}, "partition.replicas=[2, 1]: replicas cannot scale the loss"),
        ([2, 1], {"case": "vertical_sync"}, "method=pipedream compares the versions of different stages"),
        ([2, 1], {"model": {"_target_": "support.tied_model.build"}, "case": "gpipe"}, "model.untie=true works"),
        ([2], {"partition": ONE, "case": "gpipe", "train": {"precision": "fp16"}}, "train.precision=bf16 works"),
    ],
)
def test_replicas_that_cannot_work_are_refused(tmp_path, replicas, changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        prepared(tmp_path, replicas, **changes)
