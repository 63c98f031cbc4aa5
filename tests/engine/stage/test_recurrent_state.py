"""State that layers carry from minibatch to minibatch: each microbatch's own, and a recomputation's that of its F."""

import pytest
import torch
from support.methods import METHODS
from support.pipelines import Pipeline, half_decay, pipeline, sgd
from support.running_text import ROWS, build, data, minibatches, token_loss
from typing_extensions import override

from pipetrain.data.loader import Loader
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.pipeline import build_finegrained_pipeline
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.models.stateful_layer import StatefulLayer, carrying_state
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.stage.base import Training
from pipetrain.engine.stage.recurrent_state import RecurrentState

CUTS = [2, 4]


def loader(split, microbatches=1):
    return Loader(split, batch_size=ROWS, microbatches=microbatches, shuffle=False)


def lstm_pipeline(case, N=1, cuts=CUTS, **options):
    torch.manual_seed(0)
    return pipeline(build(), cuts, case, N, loss=token_loss, **options)


class Sum(StatefulLayer):
    """Adds up all that it has seen of each row."""

    @override
    def forward(self, x):
        total = x + self.carried[0] if self.carried else x
        self.carry(total)
        return total


def forward(state, layer, microbatch, *values):
    with state.lent(microbatch):
        return layer(torch.tensor(values)).tolist()


@pytest.fixture
def layer():
    return Sum()


@pytest.fixture
def state(layer):
    return RecurrentState({"sum": layer})


def test_each_microbatch_goes_on_where_it_ended_itself(state, layer):
    assert forward(state, layer, 0, 1, 2) == [1, 2]
    assert forward(state, layer, 1, 10, 20) == [10, 20]
    assert forward(state, layer, 0, 3, 3) == [4, 5]
    assert forward(state, layer, 1, 0, 1) == [10, 21]


def test_epoch_begins_anew_and_another_interval_of_it_does_not(state, layer):
    forward(state, layer, 0, 1)
    state.begin(1, epoch=False)
    assert forward(state, layer, 0, 1) == [2]
    state.begin(1, epoch=True)
    assert forward(state, layer, 0, 1) == [1]


def test_side_computation_uses_given_state_and_leaves_none(state, layer):
    forward(state, layer, 0, 1)
    before = state.of(0)
    forward(state, layer, 0, 5)
    with state.aside({0: before}):
        assert forward(state, layer, 0, 5) == [6]
    assert forward(state, layer, 0, 0) == [6]


def test_restored_state_is_split_for_other_microbatch_count(state, layer):
    forward(state, layer, 0, 1, 2)
    forward(state, layer, 1, 3)
    (saved,) = state.tensors()["sum"]
    assert saved.tolist() == [1, 2, 3]
    again = RecurrentState({"sum": layer})
    again.restore({"sum": (saved,)})
    again.begin(3, epoch=False)
    assert [forward(again, layer, j, 0) for j in range(3)] == [[1], [2], [3]]


def test_forward_that_fails_leaves_the_state_as_it_was(state, layer):
    forward(state, layer, 0, 1, 2)
    with pytest.raises(RuntimeError):
        forward(state, layer, 0, 1, 2, 3)
    assert forward(state, layer, 0, 0, 0) == [1, 2]
    assert layer.carried is None


# -- in a pipeline -----------------------------------------------------------------------------------------------------


def plain_losses(epochs):
    """Of a loop as anybody would write it."""
    torch.manual_seed(0)
    model = build(dropout=0.0).module
    optimizer, losses = sgd(list(model.parameters())), []
    for _ in range(epochs):
        with carrying_state(model):
            for inputs, targets in minibatches(data().train):
                optimizer.param_groups[0]["lr"] = half_decay(len(losses))
                loss = token_loss(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("case", "cuts", "N"), [("sequential", [], 1), ("gpipe", [1, 3], 2), ("gpipe", [1, 6], 4)])
def test_pipeline_equals_state_carrying_loop_with_evaluations(case, cuts, N):
    torch.manual_seed(0)
    pipe = pipeline(build(dropout=0.0), cuts, case, N, loss=token_loss)
    train, evaluation = loader(data().train, N), loader(data().eval)
    pipe.train(train)
    first = pipe.executor.evaluate(evaluation)
    assert pipe.executor.evaluate(evaluation) == first
    pipe.train(train)
    torch.testing.assert_close(pipe.losses, plain_losses(2), rtol=1e-5, atol=1e-6)


def test_evaluation_state_is_separate_from_training():
    pipe = lstm_pipeline("pipedream")
    train, evaluation = loader(data().train), loader(data().eval)
    pipe.executor.train(train, DrainInterval(epoch=0, first=0, last=3, start=0))
    model = build()
    model.module.load_state_dict(pipe.state())
    model.module.eval()
    with carrying_state(model.module), torch.no_grad():
        losses = [token_loss(model(inputs), targets).item() for inputs, targets in minibatches(data().eval)]
    before = [stage.carried.tensors() for stage in pipe.stages]
    assert pipe.executor.evaluate(evaluation)["loss"] == pytest.approx(sum(losses) / len(losses))
    assert str([stage.carried.tensors() for stage in pipe.stages]) == str(before)


@pytest.mark.parametrize("case", ["gpipe", "pipedream", "i_timeprest"])
def test_recomputation_begins_with_state_of_the_forward(case):
    runs = []
    for recompute in (None, [0, 1, 2]):
        torch.manual_seed(0)
        pipe = pipeline(build(), [2, 4], case, 2, loss=token_loss, recompute=recompute)
        runs.append(pipe.train(loader(data().train, 2)))
    assert runs[0].losses == runs[1].losses
    assert all(torch.equal(a, b) for a, b in zip(*(run.state().values() for run in runs), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("segments", [None, [0, 2]])
def test_fine_grained_stages_carry_state_as_stages_of_layers_do(segments):
    theirs = lstm_pipeline("pipemare", 2, [1, 2, 3, 4, 5, 6], recompute=segments).train(loader(data().train, 2))
    torch.manual_seed(0)
    chain, losses = build(), []
    method, schedule = METHODS["pipemare"]
    spans = None if segments is None else RecomputeSegments(tuple(segments), 7)
    executor = build_finegrained_pipeline(
        chain,
        [(0, 1), (1, 3), (3, 5), (5, 7), (7, 9), (9, 11), (11, 12)],
        PipelineRules(schedule, method, 7, 2, spans),
        Training(OptimizerFactory(sgd, half_decay), token_loss),
        RunHooks(lambda _t, value: losses.append(value.mean.item())),
        None if segments is None else tuple(segments),
    )
    ours = Pipeline(executor, losses).train(loader(data().train, 2))
    assert ours.losses == theirs.losses
    carried = {name for stage in ours.stages for name in stage.carried.tensors()}
    assert carried == {name for stage in theirs.stages for name in stage.carried.tensors()}
    assert len(carried) == 5
