"""A weight that several stages hold: its gradient is the sum of theirs, and all copies stay equal."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from support import tied_model
from support.methods import MethodCase
from support.pipelines import batches, difference, pipeline, sgd
from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.device_queue import numbers
from pipetrain.engine.executors import tied_weights
from pipetrain.engine.executors.tied_weights import TiedGradients, TiedMessages
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.ties import Tie
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.replicas import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin

SHARED = "encoder.linear.weight"
CUTS = ([2], [2, 6], [1, 2, 3, 5])


def data():
    torch.manual_seed(1)
    return torch.randn(22, 1, 8, 8), torch.arange(22) % 4


def trained(cuts, case="gpipe", **options):
    torch.manual_seed(0)
    pipe = pipeline(tied_model.build(1, 4), cuts, case, 2, **options)
    return pipe.train(batches(*data(), 8, 2))


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.0)


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("build", [sgd, adam])
def test_stages_sharing_a_weight_train_as_plain_model(build, clip_norm):
    plain = trained([], build=build, clip_norm=clip_norm)
    for cuts, case in zip(CUTS, ("gpipe", "pipedream_flush", "sequential"), strict=True):
        pipe = trained(cuts, case, build=build, clip_norm=clip_norm)
        assert difference(pipe.state(), plain.state()) < 1e-5, (cuts, case)
        assert pipe.losses == pytest.approx(plain.losses, rel=1e-5)


def test_copies_and_optimizer_states_are_equal_on_all_stages():
    pipe = trained([2, 6], build=adam)
    first, last = pipe.stages[0], pipe.stages[-1]
    assert torch.equal(first.state()[SHARED], last.state()[SHARED])
    names = [next(local for local, full in stage.full_names.items() if full == SHARED) for stage in (first, last)]
    ours, theirs = (stage.optimizer.state()[name] for stage, name in zip((first, last), names, strict=True))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_module_that_is_two_layers_trains_in_two_stages():
    def train(cuts):
        torch.manual_seed(0)
        linear = nn.Linear(6, 6)
        net = nn.Sequential(linear, nn.Tanh(), linear)
        torch.manual_seed(1)
        return pipeline(net, cuts, "gpipe", 2).train(batches(torch.randn(16, 6), torch.arange(16) % 4, 8, 2))

    assert difference(train([2]).state(), train([]).state()) < 1e-5


class Rarely(nn.Module):
    """Uses its weight only for inputs that are all positive."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x + self.weight if bool((x > 0).all()) else x


def test_tied_gradient_is_shared_and_untouched_weight_skipped():
    weight = nn.Parameter(torch.ones(3))
    first, last = Rarely(weight), Rarely(weight)
    middle = nn.Linear(3, 3)
    nn.init.constant_(middle.weight, -1.0)
    nn.init.constant_(middle.bias, -1.0)
    module = nn.ModuleList([first, middle, last])
    positive, negative = torch.ones(4, 3), -torch.ones(4, 3)
    pipe = pipeline(LayerChain(module, [first, middle, last]), [1, 2], "gpipe", 1)
    pipe.train(batches(negative[:1], torch.tensor([0]), 1))
    assert pipe.stages[0].state()["0.weight"].tolist() != [1.0] * 3  # the last layer alone
    before = pipe.stages[0].state()["0.weight"].clone()
    with torch.no_grad():
        middle.weight.fill_(1.0)
    pipe.train(batches(negative, torch.tensor([0, 1, 2, 0]), 4))
    assert torch.equal(pipe.stages[0].state()["0.weight"], before)
    pipe.train(batches(positive, torch.tensor([0, 1, 2, 0]), 4))
    assert not torch.equal(pipe.stages[0].state()["0.weight"], before)
    assert torch.equal(pipe.stages[0].state()["0.weight"], pipe.stages[2].state()["0.weight"])


def test_offers_are_forgotten_once_all_have_taken_the_sum():
    gathered = TiedGradients([Tie("w", (0, 2))], [0, 1, 2])
    gathered.offer(0, {"w": torch.ones(2)})
    assert gathered.take(0) is None
    assert gathered.take(1) == {}
    gathered.offer(2, {})
    assert gathered.take(0)["w"].tolist() == gathered.take(2)["w"].tolist() == [1.0, 1.0]
    assert gathered.take(0) is None


def test_stages_that_would_not_keep_a_shared_weight_equal_are_refused():
    replicated = MethodCase(Synchronous(), RoundRobin(GPipe(), Replicas((2, 1))))
    assert_refused(rf"{SHARED} is in stages 0 and 1, and replicas", trained, [2], replicated)
    assert_refused(rf"{SHARED} is in stages 0 and 1, and .* 1f1b", trained, [2], "pipedream")
    shared = nn.Linear(4, 4)
    pipeline(LayerChain.of_sequential(nn.Sequential(shared, shared, nn.Linear(4, 4))), [2], "pipedream")


def test_flags_of_all_partners_are_read_together(monkeypatch):
    reads = []
    monkeypatch.setattr(tied_weights, "numbers", lambda flags: reads.append(len(flags)) or numbers(flags))
    names = ["a", "b"]
    ties = [Tie(name, (0, 1, 2)) for name in names]
    gathered = TiedGradients(ties, [0])
    gathered.offer(0, {"a": torch.ones(2)})
    for stage, flags in ((1, [True, False]), (2, [True, False])):
        message = (torch.tensor(flags), torch.full((2,), 2.0), torch.zeros(3))
        gathered.offer_parts(stage, tied_weights.decode_parts(names, message))
    assert reads == []
    assert {name: total.tolist() for name, total in gathered.take(0).items()} == {"a": [5.0, 5.0]}
    assert reads == [4]


def test_flags_are_read_once_their_message_has_come(monkeypatch):
    seen = []
    links = mock.Mock(catch_up=lambda _what: seen.append("has come"))
    monkeypatch.setattr(tied_weights.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(tied_weights, "numbers", lambda flags: seen.append("is read") or numbers(flags))
    monkeypatch.setattr(tied_weights, "Outgoing", mock.Mock())
    monkeypatch.setattr(tied_weights, "encode_parts", mock.Mock())
    message = torch.tensor([True]), torch.ones(2)
    monkeypatch.setattr(tied_weights, "Incoming", lambda *_: mock.Mock(take=lambda: message))
    gathered = TiedMessages([SimpleNamespace(index=0, ties=[Tie("w", (0, 1))])], lambda stage: stage, links)
    gathered.offer(0, {"w": torch.ones(2)})
    assert gathered.take(0)["w"].tolist() == [2.0, 2.0]
    assert seen == ["has come", "is read"]
