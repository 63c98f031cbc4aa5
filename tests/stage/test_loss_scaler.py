"""The factor of a scaled loss."""

import contextlib
import functools

import pytest
import torch
from support.pipelines import batches, pipeline
from torch import nn

from pipetrain.arithmetic import ComputeOptions
from pipetrain.device_queue import numbers
from pipetrain.executors.hooks import RunHooks
from pipetrain.stage.loss_scaler import LossScaler

FINE, WRONG = torch.tensor(4.0), torch.tensor(float("nan"))


def test_factor_is_halved_where_one_stage_has_a_gradient_that_is_not_finite():
    scaler = LossScaler()
    assert scaler.passes([FINE, FINE])
    assert not scaler.passes([FINE, WRONG])
    assert not scaler.passes([torch.tensor(float("inf"))])
    assert (scaler.scale, scaler.skipped) == (2.0**14, 2)


def test_factor_is_doubled_after_two_thousand_updates_in_a_row():
    scaler = LossScaler()
    scaler.passes([WRONG])
    for _ in range(1999):
        scaler.passes([FINE])
    assert scaler.scale == 2.0**15
    again = LossScaler()
    again.load_state(scaler.state())
    again.passes([FINE])
    assert (again.scale, again.skipped) == (2.0**16, 1)


def trained(case, factors=None, precision="fp16", **options):
    """Four steps of three stages."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    pipe = pipeline(net, [1, 2], case, 2, arithmetic=ComputeOptions(precision), **options)
    for stage, factor in zip(pipe.stages, factors or (), strict=False):
        stage.scaler.scale = factor
    before = pipe.state()
    return before, pipe.train(batches(torch.randn(16, 4), torch.arange(16) % 4, 4, 2))


def test_step_is_skipped_on_all_stages_alike_under_a_synchronous_method():
    before, pipe = trained("gpipe", [2.0**40] * 3)  # beyond float16 for more than four steps
    assert all(torch.equal(before[name], tensor) for name, tensor in pipe.state().items())
    assert pipe.reports("skipped_updates") == [4, 4, 4]
    assert pipe.reports("loss_scale") == [2.0**36] * 3
    assert [stage.updates for stage in pipe.stages] == [4, 4, 4]


def test_asynchronous_stage_decides_for_itself_and_changes_no_factor_behind_it():
    _, pipe = trained("pipedream", [2.0**40, 2.0**16, 2.0**10])
    assert pipe.reports("skipped_updates") == [4, 0, 0]
    assert pipe.reports("loss_scale") == [2.0**36, 2.0**16, 2.0**10]


def test_factors_of_two_change_no_gradient_that_float16_can_hold():
    ends = [trained("pipedream", factors)[1].state() for factors in ([64.0] * 3, [256.0, 64.0, 128.0])]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_scaled_gradients_are_clipped_as_plain_ones():
    _, scaled = trained("gpipe", clip_norm=0.1)
    _, plain = trained("gpipe", clip_norm=0.1, precision="fp32")
    for name, tensor in plain.state().items():
        torch.testing.assert_close(scaled.state()[name], tensor, rtol=2e-3, atol=2e-4)


def test_factors_on_a_device_are_exchanged_without_a_look_at_them(monkeypatch):
    factors = [2.0**20, 64.0, 2.0**3]  # whose quotients float16 may not hold
    _, expected = trained("pipedream", factors)
    monkeypatch.setattr("pipetrain.stage.stage.queues", lambda _device: True)
    _, found = trained("pipedream", factors)
    assert all(torch.equal(found.state()[name], tensor) for name, tensor in expected.state().items())


@pytest.mark.parametrize("case", ["gpipe", "pipedream"])
def test_norms_are_read_once_an_update_in_what_the_watchdog_takes_for_waiting(monkeypatch, case):
    events = []

    @contextlib.contextmanager
    def waiting(what):
        events.append(what)
        yield
        events.append("done")

    def read(scalars):
        events.append("read")
        return numbers(scalars)

    monkeypatch.setattr("support.pipelines.RunHooks", functools.partial(RunHooks, waiting=waiting))
    monkeypatch.setattr("pipetrain.executors.stage_runner.numbers", read)
    monkeypatch.setattr("pipetrain.executors.clipping.numbers", lambda norms: [norm.item() for norm in norms])
    _, pipe = trained(case, clip_norm=0.1)
    updates = sum(stage.updates for stage in pipe.stages)
    assert events == ["its device", "read", "done"] * updates
