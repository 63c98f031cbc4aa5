import json

import pytest
import torch
from torch import nn

from pipetrain.engine.models.chain import LayerChain
from pipetrain.graph.layer_costs import WEIGHT_BYTES_PER_SECOND
from pipetrain.runner.partition.rules import Even, Explicit, Ppv
from pipetrain.runner.partition.run_plan import Plan, StagePlan, make_plan
from pipetrain.zoo.models import small_images

EXAMPLE = [torch.zeros(4, 1, 28, 28)]
LENET = small_images.lenet5(1, 10, (28, 28))


def test_plan_describes_each_stage():
    plan = make_plan(LENET, Ppv([2, 3]), EXAMPLE)
    assert plan.rule == "ppv"
    assert [(stage.first, stage.last) for stage in plan.stages] == [(0, 3), (3, 5), (5, 7)]
    assert plan.stages[1].labels == ["pool2", "fc1"]
    assert [stage.parameters for stage in plan.stages] == [156 + 2_416, 48_120, 10_164 + 850]
    assert [stage.weight_bytes for stage in plan.stages] == [4 * stage.parameters for stage in plan.stages]
    assert all(stage.estimated_seconds > 0 for stage in plan.stages)
    assert plan.stages[1].estimated_bytes > 2 * 4 * 48_120


def test_plan_is_reproducible_json():
    plan = make_plan(LENET, Explicit([3, 5]), EXAMPLE)
    content = json.loads(json.dumps(plan.to_json()))
    assert content == make_plan(LENET, Explicit([3, 5]), EXAMPLE).to_json()
    assert content["rule"] == "explicit"
    assert content["parameters"] == 61_706
    assert content["stale_weight_share"] == pytest.approx(1 - 11_014 / 61_706)
    assert set(content["stages"][0]) == {
        "stage", "first", "last", "labels", "parameters", "estimated_seconds", "estimated_bytes", "weight_bytes",
    }  # fmt: skip


def test_plan_of_one_stage_has_no_stale_weights():
    assert make_plan(LENET, Even(1), EXAMPLE).stale_weight_share == 0.0
    assert Plan("even", [StagePlan(0, 1, ["relu"], 0, 0.0, 0, 0)]).stale_weight_share == 0.0


@pytest.mark.parametrize("stages", [1, 2])
def test_tied_weight_counts_once_in_a_stage_and_in_the_plan(stages):
    embedding, decoder = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    decoder.weight = embedding.weight
    chain = LayerChain(nn.ModuleList([embedding, decoder]), [embedding, decoder])
    plan = make_plan(chain, Even(stages), [torch.zeros(2, 3, dtype=torch.long)], shares_weights=stages > 1)
    assert [stage.parameters for stage in plan.stages] == [28] * stages
    assert plan.to_json()["parameters"] == 28


def test_time_of_a_stage_includes_the_passes_over_its_weights():
    plain = make_plan(LENET, Explicit([3, 5]), EXAMPLE).stages
    updated = make_plan(LENET, Explicit([3, 5]), EXAMPLE, lambda stages: [5.0] * stages).stages
    for stage, more in zip(plain, updated, strict=True):
        seconds = 5 * 4 * stage.parameters / WEIGHT_BYTES_PER_SECOND
        assert more.estimated_seconds == pytest.approx(stage.estimated_seconds + seconds)
