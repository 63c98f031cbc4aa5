"""Replicas that train alone: against a loop of plain torch, and what each part of their averaging does."""

import copy
import math
import zlib
from itertools import chain

import pytest
import torch
from torch import nn
from torch.func import functional_call

from pipetrain.engine import OneFOneB, PipeDream, Pipeline
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.schedules import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.engine.seeding import key
from pipetrain.zoo.weight_averaging import Parts, WeightAveraging

SEED = 5


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def data(minibatches, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(4, 6, generator=generator).double(), torch.arange(4) % 3) for _ in range(minibatches)]


def pipeline(averaging, count=2, stages=(2,), **changes):
    return Pipeline(
        model(),
        stages,
        schedule=RoundRobin(OneFOneB(), Replicas((count,) * (len(stages) + 1), delay=averaging and averaging.delay)),
        method=PipeDream(),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
        loss=nn.CrossEntropyLoss(),
        device="cpu",
        averaging=averaging,
        **changes,
    )


def elements_of(name, count, share, turn):
    """Places of the elements of a weight whose turn it is."""
    parts = math.ceil(1 / share)
    seed = key(SEED, 0x5E1EC7, zlib.crc32(name.encode()), turn // parts)
    order = sorted(range(count), key=lambda place: splitmix64(seed, place))
    return torch.tensor(order[turn % parts :: parts], dtype=torch.int64)


def splitmix64(seed, place):
    """Number `place` of the generator, as a number with a sign."""
    mask = 2**64 - 1
    number = (seed + (place + 1) * 0x9E3779B97F4A7C15) & mask
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & mask
    number ^= number >> 31
    return number - 2**64 if number >= 2**63 else number


def decay_of(rule, update):
    if update < rule.rise_after:
        return rule.decay
    passed = (update - rule.rise_after) / (rule.updates - rule.rise_after - 1)
    return rule.decay + (rule.final_decay - rule.decay) * (1 - 0.5 * (1 + math.cos(math.pi * passed)))


class Replica:
    """One replica of two stages with weight stashing: stage 0 computes with the weights before its last update."""

    def __init__(self):
        self.net = model()
        self.before = None
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.averages = {}

    def step(self, inputs, targets):
        newest = dict(self.net.named_parameters())
        stashed = {name: w for name, w in (self.before or newest).items() if name.startswith("0.")}
        read = {name: w.detach().clone().requires_grad_() for name, w in {**newest, **stashed}.items()}
        loss = nn.functional.cross_entropy(functional_call(self.net, read, inputs), targets)
        loss.backward()
        self.before = {name: w.detach().clone() for name, w in newest.items()}
        for name, weight in newest.items():
            weight.grad = read[name].grad
        self.optimizer.step()
        return loss.item()

    def memory(self, name):
        return self.net.get_parameter(name).data.view(-1)


def reference(rule, minibatches, count=2):
    """Losses, and the replicas after the run."""
    replicas, given, losses = [Replica() for _ in range(count)], [], []
    for update in range(len(minibatches) // count):
        for replica, minibatch in zip(replicas, minibatches[update * count :], strict=False):
            losses.append(replica.step(*minibatch))
        chosen = {name: elements_of(name, w.numel(), rule.share, update) for name, w in model().named_parameters()}
        given.append((chosen, [{name: r.memory(name)[at].clone() for name, at in chosen.items()} for r in replicas]))
        if update < rule.delay:
            continue
        chosen, values = given[update - rule.delay]
        for name, at in chosen.items():
            mean = sum(each[name] for each in values) / count
            for replica, own in zip(replicas, values, strict=True):
                change = replica.memory(name)[at] - own[name]
                if rule.correction == "none":
                    change = torch.zeros_like(change)
                elif rule.correction == "ema":
                    first = name not in replica.averages
                    average = replica.averages.setdefault(name, torch.zeros_like(replica.memory(name)))
                    decay = 0.0 if first else decay_of(rule, update)
                    change = average[at] = decay * average[at] + (1 - decay) * change
                replica.memory(name)[at] = mean + rule.strength * change
    return losses, replicas


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("delay", [0, 1, 5])
@pytest.mark.parametrize(("correction", "strength"), [("ema", 1.0), ("ema", 0.5), ("update", 0.7), ("none", 1.0)])
def test_replicas_train_as_a_loop_of_plain_torch_does(share, delay, correction, strength):
    rule = WeightAveraging(
        share, delay, correction, strength, decay=0.5, final_decay=0.9, rise_after=4, updates=12, seed=SEED
    )
    ours, (losses, replicas) = pipeline(rule), reference(rule, data(24))
    assert ours.train(data(24)) == pytest.approx(losses, rel=1e-7)  # which are kept in float32
    for stage in ours.stages:
        for name, weight in stage.state().items():
            torch.testing.assert_close(weight, replicas[stage.replica].net.state_dict()[name], rtol=1e-11, atol=1e-13)
    # evaluations and `weights` read the mean
    mean = copy.deepcopy(replicas[0].net)
    for name, weight in mean.named_parameters():
        weight.data = (weight.data + replicas[1].net.get_parameter(name).data) / 2
    inputs, targets = data(1, seed=9)[0]
    expected = nn.functional.cross_entropy(mean(inputs), targets).item()
    assert ours.evaluate([(inputs, targets)])["loss"] == pytest.approx(expected, rel=1e-11)
    assert all(torch.allclose(weight, mean.state_dict()[name]) for name, weight in ours.weights().items())


def test_replicas_that_average_all_weights_at_once_stay_equal():
    ours = pipeline(WeightAveraging(share=1.0, delay=0, correction="none"), count=3)
    ours.train(data(18))
    assert all(stage.report()["replica_distance"] == 0 for stage in ours.stages)
    apart = pipeline(WeightAveraging(share=0.05, delay=10), count=3)
    apart.train(data(18))
    distances = [stage.report()["replica_distance"] for stage in apart.stages]
    assert all(distance > 1e-3 for distance in distances)


def test_training_goes_on_from_a_state_dict_as_if_it_had_not_ended():
    def rule():
        return WeightAveraging(share=0.3, delay=3, rise_after=2, updates=12)

    whole, first, second = (pipeline(rule()) for _ in range(3))
    first.train(data(12))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    whole.train(data(12))
    for each in (whole, second):
        each.train(data(12, seed=2))
    for one, other in zip(whole.stages, second.stages, strict=True):
        assert all(torch.equal(weight, other.state()[name]) for name, weight in one.state().items())
        assert all(torch.equal(mean, other.averages[name]) for name, mean in one.averages.items())
    # each stage goes on from its part of another partition
    cut_elsewhere = pipeline(rule(), stages=(4,))
    cut_elsewhere.load_state_dict(first.state_dict())
    states = [
        {**a.state(), **b.state()} for a, b in zip(cut_elsewhere.stages[:2], cut_elsewhere.stages[2:], strict=True)
    ]
    for state, one, other in zip(states, first.stages[:2], first.stages[2:], strict=True):
        assert all(torch.equal(state[name], weight) for name, weight in {**one.state(), **other.state()}.items())


def test_round_that_a_drain_cuts_short_leaves_a_replica_as_it_is():
    """Five minibatches on two replicas: the last update of the second replica has no gradient."""
    ours = pipeline(WeightAveraging(share=0.05, delay=100))
    losses = ours.train(data(5))
    _, replicas = reference(WeightAveraging(share=0.05, delay=100, seed=SEED), data(4))
    assert len(losses) == 5
    second = {name: weight for stage in ours.stages if stage.replica for name, weight in stage.state().items()}
    for name, weight in second.items():
        torch.testing.assert_close(weight, replicas[1].net.state_dict()[name], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        ((7, 5), 0.25),
        ((3,), 0.05),
        ((2, 4, 3, 3), 0.1),
        ((1,), 1.0),
        ((), 0.5),
        ((97,), 1 / 49),
        ((2**20 + 3,), 0.5),
        ((0,), 0.5),
    ],
)
def test_every_element_has_its_turn_once_whatever_the_memory_order(shape, share):
    weight, number = torch.randn(shape), round(1 / share)
    assert WeightAveraging(share=share).parts == number
    parts = Parts(weight, "w", number, SEED)
    rounds = [[parts.elements(turn).tolist() for turn in range(k * number, (k + 1) * number)] for k in range(2)]
    for turns in rounds:
        assert sorted(chain.from_iterable(turns)) == list(range(weight.numel()))
        assert max(map(len, turns)) - min(map(len, turns)) <= 1
    assert number == 1 or weight.numel() < 4 or rounds[0] != rounds[1]
    if len(shape) == 4:
        last = weight.to(memory_format=torch.channels_last)
        memory = last.as_strided((last.numel(),), (1,))
        there = Parts(last, "w", number, SEED).elements(3)
        assert torch.equal(memory[there.long()], weight.view(-1)[parts.elements(3).long()])


class Scale(nn.Module):
    """A weight of one element, which has its turn once in a round like those of others, and running statistics."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.norm = nn.BatchNorm1d(3, affine=False).double()

    def forward(self, x):
        return self.norm(x) * self.scale


def pipeline_with_scale():
    torch.manual_seed(0)
    return Pipeline(
        nn.Sequential(nn.Linear(6, 3).double(), Scale()),
        [1],
        schedule=RoundRobin(OneFOneB(), Replicas((2, 2), delay=10)),
        method=PipeDream(),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.2, momentum=0.9),
        loss=nn.CrossEntropyLoss(),
        device="cpu",
        averaging=WeightAveraging(),
    )


def test_replicas_stay_together_in_their_smallest_weights():
    ours = pipeline_with_scale()
    assert max(ours.train(data(400))) < 5
    assert all(stage.report()["replica_distance"] < 2 for stage in ours.stages)


def test_running_statistics_are_the_mean_over_replicas_at_a_drain():
    ours, (first, second) = pipeline_with_scale(), data(2)
    layer = copy.deepcopy(ours.stages[0].module)
    expected = sum(layer(inputs, microbatch=(0, 0))[0].mean(0) for inputs, _ in (first, second)) / 2 * 0.1
    ours.train([first, second])
    for stage in ours.stages[2:]:
        (found,) = (each for name, each in stage.buffers.items() if name.endswith("running_mean"))
        torch.testing.assert_close(found, expected.detach())


def test_share_of_all_elements_is_in_the_order_of_the_weight():
    weight = torch.randn(2, 4, 3, 3)
    assert Parts(weight, "w", 1, SEED).elements(1).tolist() == list(range(weight.numel()))
    last = weight.to(memory_format=torch.channels_last)
    memory = last.as_strided((last.numel(),), (1,))
    assert torch.equal(memory[Parts(last, "w", 1, SEED).elements(1).long()], weight.view(-1))


@pytest.mark.parametrize(
    ("counts", "delay", "averaging", "named"),
    [
        ((2, 2), 10, None, "replicas that train alone need a rule"),
        ((2, 2), None, WeightAveraging(), r"the schedule's replicas have delay=None; .*delay=10"),
        ((2, 2), 3, WeightAveraging(), r"the schedule's replicas have delay=3; .*delay=10"),
        ((2, 1), 10, WeightAveraging(), r"partition\.replicas=\[2, 1\]: .*the same number for every stage"),
        ((1, 1), 10, WeightAveraging(), r"partition\.replicas=\[1, 1\]: .*more than one"),
    ],
)
def test_rule_and_schedule_go_together(counts, delay, averaging, named):
    schedule = RoundRobin(OneFOneB(), Replicas(counts, delay))
    with pytest.raises(ConfigError, match=named):
        Pipeline(
            model(),
            2,
            schedule=schedule,
            method=PipeDream(),
            optimizer=torch.optim.SGD,
            loss=nn.CrossEntropyLoss(),
            device="cpu",
            averaging=averaging,
        )


@pytest.mark.parametrize(
    ("setting", "value"),
    [("correction", "half"), ("share", 0), ("share", 1.5), ("share", math.nan), ("delay", -1), ("delay", 1.5)],
)
def test_wrong_settings_are_named(setting, value):
    with pytest.raises(ConfigError, match=rf"averaging\.{setting}={value}"):
        WeightAveraging(**{setting: value})


@pytest.mark.parametrize("changes", [{"delay": 5}, {"delay": 1}, {"delay": 0}, {"share": 0.5}])
def test_averages_under_way_need_the_same_share_and_delay(changes):
    first = pipeline(WeightAveraging(share=0.3, delay=3))
    first.train(data(12))
    other = pipeline(WeightAveraging(**{"share": 0.3, "delay": 3, **changes}))
    with pytest.raises(ConfigError, match=r"averaging\.share=.* averaging\.delay="):
        other.load_state_dict(first.state_dict())


@pytest.mark.parametrize(("averaging", "count"), [(WeightAveraging(), 2), (None, 3)])
def test_state_without_a_replica_names_it(averaging, count):
    saved = pipeline(averaging, count)
    saved.train(data(12))
    with pytest.raises(ConfigError, match=r"has no weights of replica [12], which trains alone"):
        pipeline(WeightAveraging(), count=3).load_state_dict(saved.state_dict())
