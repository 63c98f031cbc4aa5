"""Phases that settings choose, without data and model."""

import pytest
from support.refusals import assert_refused

from pipetrain.reporting.timeline.composed_phases import MOST_STAGES, composed_phases


def test_composed_phases_are_those_that_would_run():
    words = ["method=pipemare", "partition.stages=3", "train.microbatches=2", "train.batch_size=8"]
    first, last = composed_phases([*words, "phases=[{method: gpipe, schedule: gpipe, steps: 5}, {}]"])
    assert (first.names, first.steps, first.batch_size) == ({"method": "gpipe", "schedule": "gpipe"}, 5, 8)
    assert (last.names, last.steps) == ({"method": "pipemare", "schedule": "pipemare"}, None)
    assert (last.rules.num_stages, last.rules.num_microbatches, last.rules.segments) == (3, 2, None)


def test_boundaries_in_layers_are_segments_of_stages():
    cuts = ["partition=explicit", "partition.boundaries=[2,5,9]", "method=pipemare"]
    (phase,) = composed_phases([*cuts, "train.recompute_boundaries=[0,5]"])
    assert (phase.rules.num_stages, phase.rules.segments.firsts) == (4, (0, 2))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["partition.stages=0"], r"partition.stages=0: .*at least 1"),
        ([f"partition.stages={MOST_STAGES + 1}"], rf"1 to {MOST_STAGES}"),
        (["train.recompute_boundaries=[2]"], r"only partition=explicit says which stages"),
        (["partition=explicit"], r"partition.boundaries is not set; e.g. partition.boundaries=\[4,7\]"),
    ],
)
def test_stage_count_only_a_model_could_tell_is_refused(words, message):
    assert_refused(message, composed_phases, words)
