"""What the stages of a pipeline compute for each microbatch, whatever the schedule."""

import pytest
import torch
from support.pipelines import batches, pipeline
from torch import nn

from pipetrain.program.drain_interval import DrainInterval

MINIBATCHES, SIZE = 6, 4


def dropping(case, num_microbatches=1):
    """A pipeline that learns nothing and drops values on both stages."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    return pipeline(model, [2], case, num_microbatches, rate=lambda _k: 0.0)


def equal_minibatches(num_microbatches=1):
    """Minibatches of one and the same sample."""
    samples = MINIBATCHES * SIZE
    return batches(torch.ones(samples, 4), torch.zeros(samples, dtype=torch.long), SIZE, num_microbatches)


@pytest.mark.parametrize("num_microbatches", [1, 2])
@pytest.mark.parametrize("case", ["gpipe", "pipedream", "pipemare"])
def test_dropout_draws_anew_for_every_minibatch_of_the_run(case, num_microbatches):
    pipe = dropping(case, num_microbatches).train(equal_minibatches(num_microbatches), epochs=2)
    assert len(set(pipe.losses)) == len(pipe.losses) == 2 * MINIBATCHES


def test_dropout_does_not_depend_on_where_the_pipeline_drains():
    whole, drained = dropping("pipedream"), dropping("pipedream")
    whole.executor.train(equal_minibatches(), DrainInterval.whole(MINIBATCHES))
    for first, last in ((0, 1), (1, 4), (4, MINIBATCHES)):
        drained.executor.train(equal_minibatches(), DrainInterval(0, first, last, first))
    assert drained.losses == whole.losses


def test_last_microbatch_of_ragged_minibatch_weighs_its_size():
    torch.manual_seed(0)
    inputs, targets = torch.randn(7, 4), torch.arange(7) % 3
    model = nn.Linear(4, 3)
    expected = nn.functional.cross_entropy(model(inputs), targets).item()
    pipe = pipeline(nn.Sequential(model), [], "gpipe", 3).train(batches(inputs, targets, 7, 3))
    assert pipe.losses == pytest.approx([expected], rel=1e-6)
