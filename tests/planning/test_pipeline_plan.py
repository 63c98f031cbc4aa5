"""Plans, and the files that hold them."""

import json
import re

import pytest
from support.refusals import assert_refused

from pipetrain.planning.pipeline_plan import PipelinePlan, PlannedStage

PLAN = PipelinePlan(
    (PlannedStage((0, 1), 3, 0.5, 100), PlannedStage((2,), 1, 0.25, 7)), 0.5, 1.75, 0.75, ("conv", "relu", "linear")
)


def test_plan_is_read_back_as_it_was_written():
    content = json.loads(json.dumps(PLAN.to_json()))
    assert PipelinePlan.from_json(content) == PLAN
    assert content["stages"][0] == {"layers": [0, 1], "replicas": 3, "time_s": 0.5, "memory_bytes": 100}


def test_in_flight_is_workers_over_replicas_of_first_stage():
    assert (PLAN.num_devices, PLAN.replicas, PLAN.in_flight) == (4, "3-1", 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": []}, "no plan of `pipetrain plan`: it has no stages"),
        ({"stages": [3]}, "stages.0=3: must be an object"),
        (
            {"stages": [{"layers": [0], "replicas": 0, "time_s": 1.0, "memory_bytes": 1}]},
            "stages.0.replicas=0: must be a whole number of at least 1",
        ),
        ({"time_per_minibatch_s": -1}, "time_per_minibatch_s=-1: must be a number of at least 0"),
        ({"labels": 3}, "labels=3: must be a list"),
    ],
)
def test_file_that_holds_no_plan_is_refused(change, message):
    assert_refused(re.escape(message), PipelinePlan.from_json, {**PLAN.to_json(), **change})
