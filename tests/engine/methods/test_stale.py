"""Stale: a learning rate for each stage."""

from dataclasses import replace

from support.moments import CONTEXT

from pipetrain.engine.methods.stale import Stale


def test_stale_has_a_learning_rate_for_each_stage():
    places = [replace(CONTEXT, stage=r) for r in range(4)]
    assert [Stale([0.5, 1, 2, 0.1]).learning_rate_scale(context, 3) for context in places] == [0.5, 1.0, 2.0, 0.1]
    assert [Stale().learning_rate_scale(context, 3) for context in places] == [1.0] * 4
