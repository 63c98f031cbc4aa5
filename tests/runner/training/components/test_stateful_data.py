"""Layers that carry state, and minibatches that do not continue one another."""

import pytest
from support.running_text import ROWS, RunningText, build
from torch import nn

from pipetrain.data.loader import Loader
from pipetrain.engine.errors import ConfigError
from pipetrain.graph.conversion import chain_of
from pipetrain.runner.training.components.model import check_stateful_data


def loaders(split, rows=ROWS):
    return {"train": Loader(split, batch_size=rows, shuffle=False)}


def test_minibatches_that_follow_one_another_pass():
    check_stateful_data(build(), loaders(RunningText(2, seed=0)))


def test_minibatches_that_do_not_are_refused_with_what_works():
    windows = [RunningText(2, seed=0)[i] for i in range(8)]
    with pytest.raises(ConfigError, match=r"layer 1\.lstm carries .*`train` do not continue.*carried=true"):
        check_stateful_data(build(), loaders(windows))


def test_minibatches_of_unlike_rows_are_refused():
    class Ordered(list):
        ordered = True

    with pytest.raises(ConfigError, match="`train` have 2 to 3 rows"):
        check_stateful_data(build(), loaders(Ordered(RunningText(2, seed=0)[i] for i in range(8)), rows=3))


def test_models_that_carry_nothing_take_any_minibatches():
    windows = [RunningText(2, seed=0)[i] for i in range(7)]
    check_stateful_data(chain_of(nn.Sequential(nn.Embedding(11, 2))), loaders(windows, 3))
