"""Single weights spread over stages."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.weight_units import weight_units
from pipetrain.graph.conversion import chain_of
from pipetrain.graph.layer_costs import no_passes
from pipetrain.runner.partition.finegrained import FineGrained, stage_bounds, stages_of_layers
from pipetrain.runner.partition.run_plan import Unplanned


@pytest.mark.parametrize(("units", "stages"), [(1, 1), (5, 3), (107, 107), (107, 214), (107, 1712), (8, 5)])
def test_units_are_spread_evenly_over_stages(units, stages):
    bounds = stage_bounds(units, stages)
    assert [r for r, (first, last) in enumerate(bounds) for _ in range(first, last)] == [
        math.floor(u * stages / units) for u in range(units)
    ]


def test_weight_and_bias_are_one_unit_and_every_tensor_is_in_one():
    chain = chain_of(nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.LSTM(3, 4, 2), nn.Linear(4, 2)))
    units = weight_units(chain)
    assert [len(unit.parameters) for unit in units] == [2, 2, 2, 2, 2]
    held = [full for unit in units for full in {**unit.parameters, **unit.buffers}.values()]
    assert sorted(held) == sorted(chain.module.state_dict())


@pytest.mark.parametrize("stages", [0, -1, 1.5, True])
def test_impossible_number_of_stages_is_refused(stages):
    with pytest.raises(ConfigError, match=r"partition\.stages"):
        plan(FineGrained(stages), chain_of(layers()))


def plan(rule, chain):
    data = SimpleNamespace(example=[torch.randn(2, 6)])
    return rule.plan_of(Unplanned(None, chain, data, no_passes, shares_weights=True))


def layers():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), nn.Linear(8, 3))


def test_fine_grained_plan_divides_a_layer_among_its_units():
    chain = chain_of(layers())
    halves, whole = plan(FineGrained(2), chain), plan(FineGrained(1), chain)
    assert [label for stage in halves.stages for label in stage.labels] == whole.stages[0].labels
    assert sum(stage.parameters for stage in halves.stages) == sum(p.numel() for p in chain.module.parameters())
    assert sum(stage.estimated_seconds for stage in halves.stages) == pytest.approx(whole.stages[0].estimated_seconds)


def test_only_layers_that_begin_with_a_first_unit_begin_a_stage():
    units = weight_units(chain_of(layers()))
    firsts = [unit.layer for unit in units]
    bounds = stage_bounds(len(units), len(units))
    assert stages_of_layers(units, bounds) == {layer: firsts.index(layer) for layer in set(firsts)}
    halves = stages_of_layers(units, stage_bounds(len(units), 2))
    assert halves[firsts[0]] == 0


def test_model_without_weights_has_no_units():
    with pytest.raises(ConfigError, match="model: no weights; there is nothing to train"):
        weight_units(chain_of(nn.Sequential(nn.ReLU())))
