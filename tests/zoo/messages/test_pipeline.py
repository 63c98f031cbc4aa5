"""The engine's `Pipeline` with formats of messages."""

import pytest
import torch
from torch import nn

from pipetrain.engine import GPipe, OneFOneB, PipeDream, Pipeline, Synchronous
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.schedules.one_f_one_b_v import OneFOneBV
from pipetrain.zoo.messages import Messages
from pipetrain.zoo.messages.aq import AqSgd
from pipetrain.zoo.messages.bf16 import Bf16
from pipetrain.zoo.messages.integers import Integers
from pipetrain.zoo.messages.topk import TopK


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def data(minibatches=4):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 6, generator=generator), torch.arange(8) % 3) for _ in range(minibatches)]


def pipeline(messages, stages=(2, 4), **changes):
    built = {"schedule": OneFOneB(), "method": PipeDream(), **changes}
    return Pipeline(
        model(),
        stages,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
        loss=nn.CrossEntropyLoss(),
        device="cpu",
        messages=messages,
        **built,
    )


class Rounded(nn.Module):
    """Rounds to bfloat16 in both directions."""

    def forward(self, x):
        return _Rounding.apply(x)


class _Rounding(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x.bfloat16().float()

    @staticmethod
    def backward(_ctx, gradient):
        return gradient.bfloat16().float()


def test_formats_compute_what_plain_torch_does_with_rounded_tensors():
    reference = model()
    first, second = reference[:2], reference[2:]
    optimizer, losses = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9), []
    for inputs, targets in data():
        loss = nn.functional.cross_entropy(second(Rounded()(first(inputs))), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    both = Messages(activations=Bf16(), gradients=Bf16())
    assert pipeline(both, (2,), schedule=GPipe(), method=Synchronous()).train(data()) == losses


def test_a_restored_pipeline_goes_on_with_the_state_of_its_links():
    def built():
        return pipeline(Messages(Integers(3, rounding="stochastic"), TopK(0.3)))

    whole, first, second = built(), built(), built()
    expected = [whole.train(data()), whole.train(data(3))]
    assert first.train(data()) == expected[0]
    second.load_state_dict(first.state_dict())
    assert second.train(data(3)) == expected[1]


def test_formats_given_to_a_pipeline_stay_as_they_are():
    form = TopK(0.3, error_feedback=True)
    one, other = (pipeline(Messages(gradients=form)).train(data()) for _ in range(2))
    assert one == other
    assert form.state() == {}


def test_links_inside_a_process_stay_plain():
    four = pipeline(Messages(Integers(2)), (1, 2, 3), schedule=OneFOneBV())
    four.train(data())
    assert ["activations_bytes" in stage for stage in four.report()] == [True, False, True, False]


def test_a_format_that_needs_samples_takes_no_iterable():
    with pytest.raises(ConfigError, match="ids of samples"):
        pipeline(Messages(AqSgd())).train(data())
