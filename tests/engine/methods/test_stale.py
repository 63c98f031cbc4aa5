"""Stale: a learning rate for each stage."""

import math
from dataclasses import replace

import pytest
from support.moments import CONTEXT

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.stale import Stale
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop


def test_stale_has_a_learning_rate_for_each_stage():
    places = [replace(CONTEXT, stage=r) for r in range(4)]
    assert [Stale([0.5, 1, 2, 0.1]).learning_rate_scale(context, 3) for context in places] == [0.5, 1.0, 2.0, 0.1]
    assert [Stale().learning_rate_scale(context, 3) for context in places] == [1.0] * 4


@pytest.mark.parametrize("value", [[1.0, 0.0], [-1], ["1"], [None], [math.inf], 0.5, 0, "fast"])
def test_stale_refuses_a_scale_out_of_its_range_by_name(value):
    with pytest.raises(ConfigError, match=r"method\.stage_lr_scale") as caught:
        Stale(value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scales", [[], [1.0], [1.0, 1.0, 1.0]])
def test_stale_with_wrong_number_of_scales_is_refused(scales):
    with pytest.raises(ConfigError, match=rf"stage_lr_scale.*has {len(scales)} scales for 2 stages"):
        PipelineRules(PipelinedBackprop(), Stale(scales), 2, 1)
    PipelineRules(PipelinedBackprop(), Stale([1.0, 0.5]), 2, 1)
