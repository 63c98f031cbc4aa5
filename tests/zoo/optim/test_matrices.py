"""Optimizers of matrices: against torch's own, and against their formulas written out."""

import copy
import pickle

import pytest
import torch
from support.equal_bits import bits
from support.refusals import assert_refused
from support.worker_pool import job, simulated
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.zoo.optim.matrices import Muon, Soap

SOURCES, GEOMETRIES = ("second", "first"), ("bilateral", "unilateral")


def parameters(dtype=torch.float32, *, square=False):
    torch.manual_seed(0)
    shapes = ((4, 4), (6,), (3, 3), (2, 3, 3, 3)) if square else ((4, 6), (6,), (5, 3), (2, 3, 3, 3))
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]


def gradients_of(weights, count=25):
    torch.manual_seed(1)
    return [[torch.randn_like(weight) * (1 + k % 3) for weight in weights] for k in range(count)]


def stepped(optimizer, weights, gradients):
    for each in gradients:
        for weight, gradient in zip(weights, each, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
    return [weight.detach().clone() for weight in weights]


def test_muon_is_torchs_muon_and_adamw_together():
    ours = parameters()
    found = stepped(Muon(ours, lr=0.02, adamw_lr_scale=0.05), ours, gradients_of(ours))
    theirs = parameters()
    parts = [
        torch.optim.Muon([p for p in theirs if p.dim() == 2], lr=0.02),
        torch.optim.AdamW([p for p in theirs if p.dim() != 2], lr=0.02 * 0.05, betas=(0.9, 0.95), weight_decay=0.1),
    ]
    for each in gradients_of(theirs):
        for weight, gradient in zip(theirs, each, strict=True):
            weight.grad = gradient.clone()
        for part in parts:
            part.step()
    assert all(torch.equal(a, b) for a, b in zip(found, theirs, strict=True))


def test_group_of_adamw_updates_its_matrices_by_adamw():
    ours = parameters()
    optimizer = Muon(
        [{"params": ours[:1], "algorithm": "adamw", "weight_decay": 0.0, "lr_scale": 2.0}, {"params": ours[1:]}]
    )
    found = stepped(optimizer, ours, gradients_of(ours))
    theirs = parameters()[:1]
    adamw = torch.optim.AdamW(theirs, lr=0.02 * 0.05 * 2, betas=(0.9, 0.95), weight_decay=0.0)
    (expected,) = stepped(adamw, theirs, [each[:1] for each in gradients_of(ours)])
    assert torch.equal(found[0], expected)
    assert set(optimizer.state[ours[0]]) == {"step", "exp_avg", "exp_avg_sq"}
    assert set(optimizer.state[ours[2]]) == {"momentum_buffer"}


def copied(optimizer, weights):
    return copy.deepcopy((optimizer, weights))


def pickled(optimizer, weights):
    return pickle.loads(pickle.dumps((optimizer, weights)))


def loaded(optimizer, weights):
    """A new optimizer of copies of the weights, given the state dict of the other."""
    weights = [nn.Parameter(weight.detach().clone()) for weight in weights]
    other = type(optimizer)(weights)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return other, weights


@pytest.mark.parametrize("again", [copied, pickled, loaded])
@pytest.mark.parametrize("kind", [Muon, Soap])
def test_copied_or_loaded_optimizer_continues_like_the_first(kind, again):
    ours = parameters()
    optimizer, gradients = kind(ours), gradients_of(ours)
    stepped(optimizer, ours, gradients[:12])
    other, theirs = again(optimizer, ours)
    for group in (*optimizer.param_groups, *other.param_groups):
        group["lr"] /= 2
    found = stepped(other, theirs, gradients[12:])
    assert all(torch.equal(a, b) for a, b in zip(stepped(optimizer, ours, gradients[12:]), found, strict=True))
    assert all(
        torch.equal(x, other.state[b][key])
        for a, b in zip(ours, theirs, strict=True)
        for key, x in optimizer.state[a].items()
    )


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_soap_keeps_the_documented_number_of_values(source, geometry):
    ours = parameters()
    optimizer = Soap(ours, source=source, geometry=geometry)
    stepped(optimizer, ours, gradients_of(ours)[:2])
    m, n = ours[0].shape
    sides = m**2 + n**2 if geometry == "bilateral" else min(m, n) ** 2
    values = sum(each.numel() for each in optimizer.state[ours[0]].values()) - 1  # the number of steps
    assert values == 2 * m * n + (2 if source == "second" else 1) * sides


def soap_by_hand(weight, gradients, *, lr, decay, betas, eps, source, geometry, frequency):
    """The formulas of Jung, Shin and Lee in double precision: M, V and both bases, with explicit matrices."""
    (beta1, beta2), (rows, columns) = betas, weight.shape
    left = geometry == "bilateral" or rows < columns
    right = geometry == "bilateral" or not left
    M, V = torch.zeros_like(weight), torch.zeros_like(weight)
    L, R = torch.zeros(rows, rows, dtype=weight.dtype), torch.zeros(columns, columns, dtype=weight.dtype)
    QL, QR = torch.eye(rows, dtype=weight.dtype), torch.eye(columns, dtype=weight.dtype)
    for t, G in enumerate(gradients, start=1):
        M = beta1 * M + (1 - beta1) * G
        L, R = beta2 * L + (1 - beta2) * G @ G.T, beta2 * R + (1 - beta2) * G.T @ G
        if t == 1 or t % frequency == 0:
            if source == "first":
                if t == 1:
                    U, _, Vt = torch.linalg.svd(M)
                    QL, QR = U if left else QL, Vt.T if right else QR
                else:
                    QL = torch.linalg.qr(M @ M.T @ QL)[0] if left else QL
                    QR = torch.linalg.qr(M.T @ M @ QR)[0] if right else QR
            elif t == 1:
                QL = torch.linalg.eigh(L)[1].flip(1) if left else QL
                QR = torch.linalg.eigh(R)[1].flip(1) if right else QR
            else:
                if left:
                    order = torch.diag(QL.T @ L @ QL).argsort(descending=True)
                    V, QL = V[order], torch.linalg.qr(L @ QL[:, order])[0]
                if right:
                    order = torch.diag(QR.T @ R @ QR).argsort(descending=True)
                    V, QR = V[:, order], torch.linalg.qr(R @ QR[:, order])[0]
        V = beta2 * V + (1 - beta2) * (QL.T @ G @ QR) ** 2
        direction = QL @ ((QL.T @ M @ QR) / (V.sqrt() + eps)) @ QR.T
        weight = weight - lr * decay * weight - lr * (1 - beta2**t) ** 0.5 / (1 - beta1**t) * direction
    return weight


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_soap_equals_its_formulas(source, geometry):
    # rounding decides on the basis of the larger side where its first covariance is singular
    start = parameters(torch.float64, square=geometry == "bilateral")
    ours, theirs = copy.deepcopy(start), copy.deepcopy(start)
    gradients = gradients_of(start)
    # in the basis of its first gradient only the diagonal of it is not 0: a small eps would divide rounding errors
    chosen = {"source": source, "geometry": geometry, "frequency": 5, "eps": 1e-3}
    found = stepped(Soap(ours, lr=0.01, weight_decay=0.1, **chosen), ours, gradients)
    options = {"lr": 0.01, "decay": 0.1, "betas": (0.95, 0.95), **chosen}
    for number in (0, 2):
        expected = soap_by_hand(start[number].detach(), [each[number] for each in gradients], **options)
        assert (found[number] - expected).abs().max() < 1e-10
    adamw = torch.optim.AdamW([theirs[1], theirs[3]], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    rest = stepped(adamw, [theirs[1], theirs[3]], [[each[1], each[3]] for each in gradients])
    assert torch.equal(found[1], rest[0])
    assert torch.equal(found[3], rest[1])


def test_soap_of_values_that_are_not_finite_gives_nan_and_no_error():
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = Soap([weight])
    weight.grad = torch.full((3, 2), torch.nan)
    optimizer.step()
    assert weight.isnan().all()


SECTIONS = {
    "muon": {"_target_": "pipetrain.zoo.optim.matrices.Muon", "lr": 0.02},
    "soap": {"_target_": "pipetrain.zoo.optim.matrices.Soap", "lr": 0.01, "frequency": 2},
}


@pytest.mark.parametrize("name", SECTIONS)
def test_synchronous_results_do_not_depend_on_the_cut(tmp_path, name):
    runs = [simulated(job(tmp_path / str(D), "gpipe", D, optimizer=SECTIONS[name])) for D in (1, 3)]
    assert bits(runs[0]) == bits(runs[1])


@pytest.mark.parametrize(
    ("groups", "change"), [([], {"geometry": "bilateral"}), ([{"max_dims": 2, "algorithm": "adamw"}], {"groups": []})]
)
def test_resumed_run_that_needs_other_state_is_refused(tmp_path, groups, change):
    chosen = {**SECTIONS["soap"], "geometry": "unilateral", "frequency": 100, "groups": groups}
    simulated(job(tmp_path, "pipedream", 2, optimizer=chosen, checkpoint={"every_epochs": 1}))
    (folder,) = store.checkpoints(tmp_path)[-1:]
    contents.check_optimizer(folder, OptimizerSettings.of({"clip_norm": None, **chosen}))
    with pytest.raises(ConfigError, match="cannot continue from the state"):
        contents.check_optimizer(folder, OptimizerSettings.of({"clip_norm": None, **chosen, **change}))


def test_epsilon_of_adamw_is_that_of_the_option():
    ours, theirs = (parameters()[:2] for _ in range(2))
    found = stepped(Muon(ours, lr=0.02, adamw_lr_scale=1.0, adamw_eps=0.5), ours, gradients_of(ours, 3))
    adamw = torch.optim.AdamW(theirs[1:], lr=0.02, betas=(0.9, 0.95), eps=0.5, weight_decay=0.1)
    expected = stepped(adamw, theirs[1:], [each[1:] for each in gradients_of(theirs, 3)])
    assert torch.equal(found[1], expected[0])


@pytest.mark.parametrize(("given", "decay"), [(None, 0.7), (0.9, 0.9)])
def test_covariances_of_soap_decay_by_the_second_beta_unless_told(given, decay):
    weight, (gradient,) = parameters()[0], gradients_of(parameters()[:1], 1)
    optimizer = Soap([weight], betas=(0.2, 0.7), covariance_beta=given)
    stepped(optimizer, [weight], [gradient])
    expected = (1 - decay) * gradient[0] @ gradient[0].T
    torch.testing.assert_close(optimizer.state[weight]["covariance_left"], expected)


@pytest.mark.parametrize("kind", [Muon, Soap])
def test_complex_matrices_are_refused_unless_adamw_has_them(kind):
    matrices = parameters(torch.complex64)[:1]
    message = rf"{kind.__name__} takes real matrices, .* shape \(4, 6\) is complex; algorithm=adamw in a group"
    assert_refused(message, lambda: kind(matrices).step())
    kind([{"params": matrices, "algorithm": "adamw"}]).step()
    kind([nn.Parameter(torch.ones(4, dtype=torch.complex64))]).step()
