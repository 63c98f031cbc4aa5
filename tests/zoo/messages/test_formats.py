"""Each format of messages against a reference in plain Python or numpy, and its error bound."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pipetrain.zoo.messages import Direction, MessageTensor
from pipetrain.zoo.messages.aq import AqSgd
from pipetrain.zoo.messages.bf16 import Bf16
from pipetrain.zoo.messages.fp8 import Fp8
from pipetrain.zoo.messages.integers import Integers
from pipetrain.zoo.messages.tah import TahQuant
from pipetrain.zoo.messages.topk import TopK
from pipetrain.zoo.messages.values import packed, unpacked

EPSILON = 2.0**-23


def of(minibatch=0, **more):
    return MessageTensor((3, 0, 5, minibatch, 0, 0), **{"epoch": 1, **more})


def arrived(form, tensor, about=None, receiver=None):
    """What arrives of a tensor."""
    about = about or of()
    out = torch.full_like(tensor, math.nan)
    (receiver or form).decode(form.encode(tensor, about), out, about)
    return out


def tensors(least=1):
    shapes = arrays.array_shapes(min_dims=least, max_dims=4, max_side=9)
    values = st.floats(-1e6, 1e6, width=32)
    return arrays.arrays(np.float32, shapes, elements=values).map(torch.from_numpy)


# -- bits --------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.lists(st.integers(0, 255), max_size=70))
def test_codes_are_packed_into_their_bits(bits, codes):
    codes = torch.tensor([code % 2**bits for code in codes], dtype=torch.uint8)
    content = packed(codes, bits)
    number = int.from_bytes(content.numpy().tobytes(), "little")
    assert [number >> bits * i & 2**bits - 1 for i in range(len(codes))] == codes.tolist()
    assert unpacked(content, bits, len(codes)).tolist() == codes.tolist()
    assert len(content) <= math.ceil(len(codes) / 8) * bits


# -- bf16 --------------------------------------------------------------------------------------------------------------


def nearest_bf16(value):
    """The upper half of a float32, rounded to even."""
    word = int(np.float32(value).view(np.uint32))
    kept, rest = word >> 16, word & 0xFFFF
    up = rest > 0x8000 or (rest == 0x8000 and kept & 1)
    return np.uint32(kept + up << 16).view(np.float32)


@given(tensors())
def test_bf16_rounds_to_the_nearest(tensor):
    expected = [nearest_bf16(value) for value in tensor.flatten().numpy()]
    found = arrived(Bf16(), tensor)
    assert found.flatten().tolist() == expected
    assert ((found - tensor).abs() <= tensor.abs() * 2.0**-8 + 1e-40).all()


# -- fp8 ---------------------------------------------------------------------------------------------------------------


def fp8_values(exponent_bits, mantissa_bits):
    """All finite values of an 8-bit type that are not negative."""
    bias, steps = 2 ** (exponent_bits - 1) - 1, 2**mantissa_bits
    found = [m / steps * 2.0 ** (1 - bias) for m in range(steps)]
    found += [(1 + m / steps) * 2.0 ** (e - bias) for e in range(1, 2**exponent_bits) for m in range(steps)]
    return np.array(found[:127] if exponent_bits == 4 else found[:124])


GRIDS = {"e4m3": fp8_values(4, 3), "e5m2": fp8_values(5, 2)}


@pytest.mark.parametrize(("kind", "most"), [("e4m3", 448.0), ("e5m2", 57344.0)])
def test_the_grids_of_the_reference_are_those_of_the_types(kind, most):
    assert GRIDS[kind][-1] == most


@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("scale", ["tensor", "row"])
@given(tensor=tensors())
def test_fp8_takes_the_nearest_value_of_its_grid(kind, scale, tensor):
    grid, values = GRIDS[kind], tensor.numpy()
    most = np.abs(values).max(-1, keepdims=True) if scale == "row" else np.abs(values).max()
    scales = np.maximum(most / np.float32(grid[-1]), np.finfo(np.float32).tiny).astype(np.float32)
    scaled = np.abs(values / scales).astype(np.float64)
    distances = np.abs(scaled[..., None] - grid)
    found = arrived(Fp8(kind, scale), tensor)
    taken = np.abs(found.numpy().astype(np.float64) / scales.astype(np.float64))
    assert (np.abs(taken - scaled) <= distances.min(-1) + 1e-5 * scaled).all()
    step = 2.0 ** -(4 if kind == "e4m3" else 3)
    least = grid[1] / 2 * scales
    assert (np.abs(found.numpy() - values) <= np.maximum(step * np.abs(values), least) * (1 + 1e-5)).all()


def test_fp8_has_more_mantissa_for_activations_and_more_range_for_gradients():
    assert [Fp8().meant_for(each).kind for each in Direction] == ["e4m3", "e5m2"]
    assert Fp8("e4m3").meant_for(Direction.GRADIENTS).kind == "e4m3"


# -- integers ----------------------------------------------------------------------------------------------------------


def integer_reference(values, bits, group, draws=None):
    """What arrives of values, one by one."""
    levels, found = 2 ** (bits - 1) - 1, []
    for start in range(0, len(values), group):
        part = values[start : start + group]
        scale = max(np.float32(np.abs(part).max() / np.float32(levels)), np.finfo(np.float32).tiny)
        for i, value in enumerate(part, start):
            quotient = np.float32(value / scale)
            whole = np.rint(quotient) if draws is None else math.floor(np.float32(quotient + draws[i]))
            found.append(np.float32(min(max(whole, -levels), levels) * scale))
    return np.array(found, dtype=np.float32)


@given(tensors(), st.integers(2, 8), st.integers(1, 70) | st.just(10**20))
def test_integers_are_the_nearest_multiples_of_the_scale_of_their_group(tensor, bits, group):
    values = tensor.flatten().numpy()
    found = arrived(Integers(bits, group), tensor).flatten().numpy()
    assert np.array_equal(found, integer_reference(values, bits, group))
    for start in range(0, len(values), group):
        part = slice(start, start + group)
        scale = np.abs(values[part]).max() / (2 ** (bits - 1) - 1)
        assert np.abs(found[part] - values[part]).max() <= scale / 2 * (1 + 2 ** (bits - 1) * 4 * EPSILON) + 1e-37


@given(tensors(), st.integers(2, 8))
def test_stochastic_integers_are_neighbors_by_draws_of_their_own(tensor, bits):
    form, count = Integers(bits, 16, "stochastic"), tensor.numel()
    draws = torch.rand(math.ceil(count / 16) * 16, generator=of().generator(torch.device("cpu"))).numpy()
    found = arrived(form, tensor).flatten().numpy()
    assert np.array_equal(found, integer_reference(tensor.flatten().numpy(), bits, 16, draws))
    assert torch.equal(arrived(form, tensor), arrived(form, tensor))


def test_stochastic_integers_are_right_in_the_mean():
    values = torch.tensor([1.0, 0.3, -0.45, 0.01]).repeat(1, 16)
    mean = sum(arrived(Integers(3, 64, "stochastic"), values, of(t)) for t in range(4000)) / 4000
    assert (mean - values).abs().max() < 5 * (1 / 3) / 2 / math.sqrt(4000)
    nearest = arrived(Integers(3, 64), values)
    assert (nearest - values).abs().max() > 0.1


@pytest.mark.parametrize("form", [Integers(8), Integers(4), Fp8(), Bf16()])
def test_what_is_not_finite_does_not_arrive_as_a_number(form):
    for value in (math.nan, math.inf):
        values = torch.ones(4, 64)
        values[1, 3] = value
        assert not arrived(form, values)[1].isfinite().all()


def test_memory_order_decides_on_groups_and_layouts_stay():
    images = torch.randn(2, 6, 5, 5).to(memory_format=torch.channels_last)
    found = arrived(Integers(4, 10), images)
    assert found.stride() == images.stride()
    in_memory = images.permute(0, 2, 3, 1).flatten().numpy()
    expected = integer_reference(in_memory, 4, 10)
    assert np.array_equal(found.permute(0, 2, 3, 1).flatten().numpy(), expected)


# -- topk --------------------------------------------------------------------------------------------------------------


@given(tensors(), st.floats(0.01, 1.0))
def test_topk_sends_the_largest_and_loses_no_more_than_their_share(tensor, share):
    found = arrived(TopK(share), tensor)
    values, sent = tensor.flatten().numpy(), found.flatten().numpy()
    count = math.ceil(Fraction(str(share)) * len(values))
    kept = np.flatnonzero(sent)
    assert len(kept) <= count
    assert np.array_equal(sent[kept], values[kept])
    threshold = np.sort(np.abs(values))[-count]
    assert (np.abs(values[sent == 0]) <= threshold).all()
    lost, whole = np.square(values - sent, dtype=np.float64).sum(), np.square(values, dtype=np.float64).sum()
    assert lost <= (1 - count / len(values)) * whole * (1 + 1e-6)


@pytest.mark.parametrize(("share", "values", "sent"), [(0.07, 100, 7), (0.1, 11, 2), (1.0, 3, 3)])
def test_topk_counts_values_by_the_share_as_it_is_written(share, values, sent):
    assert [len(part) for part in TopK(share).encode(torch.randn(values), of())] == [sent, sent]


def test_error_feedback_adds_what_was_left_out():
    form, left = TopK(0.3).meant_for(Direction.GRADIENTS), np.zeros(7, np.float32)
    torch.manual_seed(0)
    for t in range(5):
        tensor = torch.randn(1, 7)
        values = tensor.flatten().numpy() + left
        chosen = np.argsort(-np.abs(values))[:3]
        expected = np.zeros_like(values)
        expected[chosen] = values[chosen]
        left = values - expected
        assert np.array_equal(arrived(form, tensor, of(t)).flatten().numpy(), expected)


def test_error_feedback_follows_the_scale_of_the_loss():
    def sent(scales):
        form = TopK(0.5, error_feedback=True)
        return [
            arrived(form, torch.tensor([[8.0, 1.0, 3.0, 2.0]]) * scale, of(loss_scale=torch.tensor(scale))) / scale
            for scale in scales
        ]

    assert all(map(torch.equal, sent([1.0, 1.0, 1.0, 1.0]), sent([4.0, 2.0, 2.0, 8.0])))


def test_error_feedback_forgets_what_is_not_finite():
    form = TopK(0.5, error_feedback=True)
    arrived(form, torch.tensor([math.inf, math.nan, 1.0, 1.0]))
    assert arrived(form, torch.zeros(4)).isfinite().all()


def test_activations_have_no_error_feedback_unless_asked_for():
    assert not TopK().meant_for(Direction.ACTIVATIONS).keeps_state
    assert TopK().meant_for(Direction.GRADIENTS).keeps_state
    assert TopK(error_feedback=True).meant_for(Direction.ACTIVATIONS).keeps_state


# -- tah ---------------------------------------------------------------------------------------------------------------


def hadamard(size):
    return np.array([[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)]) / math.sqrt(size)


def tah_reference(sample, bits, low_bits, share, tile):
    """What arrives of one sample (tokens, width), tile by tile in float64, and the bound of the error of each token."""
    tokens, width = sample.shape

    def entropy(token):
        shares = np.abs(token) / np.abs(token).sum()
        return -sum(p * math.log(p) for p in shares if p > 0)

    low = sorted(range(tokens), key=lambda t: entropy(sample[t]))[: tokens - math.ceil(tokens * Fraction(str(share)))]
    found, bounds = np.empty_like(sample), []
    for t in range(tokens):
        levels = 2 ** (low_bits if t in low else bits) - 1
        padded = np.append(sample[t], [sample[t, -1]] * (-width % tile))
        square = 0.0
        for start in range(0, len(padded), tile):
            part = padded[start : start + tile].copy()
            first, second = np.sort(np.abs(part))[::-1][:2]
            pivot = int(np.abs(part).argmax())
            if turned := first >= 2 * second:
                part[[0, pivot]] = part[[pivot, 0]]
                part = part @ hadamard(tile)
            zero = np.float64(np.float16(part.min()))
            scale = np.float64(np.float16((part - zero).max() / levels))
            codes = np.clip(np.rint((part - zero) / scale), 0, levels)
            back = zero + scale * codes
            square += tile * (scale / 2 + 2.0**-10 * (abs(zero) + levels * scale)) ** 2
            if turned:
                back = back @ hadamard(tile)
                back[[0, pivot]] = back[[pivot, 0]]
            padded[start : start + tile] = back
        found[t] = padded[:width]
        bounds.append(math.sqrt(square))
    return found, np.array(bounds)


@pytest.mark.parametrize(("width", "tile"), [(32, 16), (21, 8), (6, 8), (64, 64)])
@pytest.mark.parametrize("seed", range(4))
def test_tah_is_that_of_the_authors(width, tile, seed):
    generator = np.random.default_rng(seed)
    samples = generator.normal(size=(2, 10, width)) * generator.lognormal(sigma=1.5, size=(2, 10, 1))
    samples[generator.random(samples.shape) < 0.03] *= 30  # outliers
    tensor = torch.from_numpy(samples)
    found = arrived(TahQuant(4, 3, 0.75, tile), tensor).numpy()
    for sample, expected in zip(samples, found, strict=True):
        reference, bounds = tah_reference(sample, 4, 3, 0.75, tile)
        np.testing.assert_allclose(expected, reference, rtol=1e-9, atol=1e-9)
        assert (np.linalg.norm(expected - sample, axis=1) <= bounds).all()


@pytest.mark.parametrize(("share", "tokens", "low"), [(0.9, 10, 1), (0.8, 5, 1), (0.8, 4, 0), (0.0, 3, 3)])
def test_tah_counts_tokens_by_the_share_as_it_is_written(share, tokens, low):
    few, many, *_ = TahQuant(8, 4, share, tile=8).encode(torch.randn(1, tokens, 8), of())
    assert (len(few), len(many)) == (low * 4, (tokens - low) * 8)


def test_tah_takes_fewer_bits_for_tokens_of_low_entropy():
    tensor = torch.rand(1, 4, 64)
    tensor[0, 2, 1:] *= 1e-3  # one value stands out
    low, high, *_ = TahQuant(4, 2, 0.75).encode(tensor, of())
    assert (low.nbytes, high.nbytes) == (64 * 2 // 8, 3 * 64 * 4 // 8)
    flat_token = (tensor[0, 1] - arrived(TahQuant(4, 2, 0.75), tensor)[0, 1]).abs().max()
    assert flat_token <= tensor[0, 1].max() / 15


# -- aq ----------------------------------------------------------------------------------------------------------------


def test_aq_sends_the_change_of_each_sample_since_its_last_epoch():
    sender, receiver = AqSgd(bits=3, group=5), AqSgd(bits=3, group=5)
    known: dict[int, np.ndarray] = {}
    torch.manual_seed(1)
    base = torch.randn(6, 2, 5)
    for epoch in range(4):
        for samples in torch.randperm(6).view(2, 3).tolist():
            tensor = base[samples] + 0.1 * torch.randn(3, 2, 5)
            about = of(epoch=epoch, samples=samples)
            parts = sender.encode(tensor, about)
            found = [torch.empty_like(tensor) for _ in range(2)]
            sender.decode(parts, found[0], about)
            receiver.decode(parts, found[1], about)
            last = np.stack([known.get(each, np.zeros(10, np.float32)) for each in samples])
            values = tensor.reshape(3, 10).numpy()
            expected = values if epoch == 0 else last + integer_reference((values - last).ravel(), 3, 5).reshape(3, 10)
            known.update(zip(samples, expected, strict=True))
            assert np.array_equal(found[1].reshape(3, 10).numpy(), expected)
            assert torch.equal(*found)
    assert (found[1] - tensor).abs().max() < (arrived(Integers(3, 5), tensor) - tensor).abs().max()


@pytest.mark.parametrize("in_file", [False, True])
def test_aq_forgets_the_oldest_samples_first(in_file, tmp_path):
    values, most = torch.randn(3, 8), 2.5 * 8 * 4 / 1e9

    def arrives_later(sample):
        form = AqSgd(bits=2, gigabytes=most, folder=str(tmp_path) if in_file else None)
        for earlier in (0, 1, 0, 2):  # in the first epoch; 1 has then been put in before the other two
            arrived(form, values[earlier : earlier + 1], of(epoch=0, samples=[earlier]))
        return arrived(form, values[sample : sample + 1], of(samples=[sample]))

    assert torch.equal(arrives_later(0), values[:1])
    assert torch.equal(arrives_later(1), arrived(Integers(2), values[1:2]))
    assert torch.equal(arrives_later(2), values[2:])


def test_a_state_in_a_file_is_that_in_memory(tmp_path):
    forms = AqSgd(), AqSgd(folder=str(tmp_path))
    for epoch in range(3):
        tensor = torch.randn(4, 6, generator=torch.Generator().manual_seed(epoch))
        one, other = (arrived(form, tensor, of(epoch=epoch, samples=[3, 1, 2, 0])) for form in forms)
        assert torch.equal(one, other)
    one, other = (form.state() for form in forms)
    assert one.keys() == other.keys() == {"keys", "0"}
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("form", [AqSgd(), TopK(error_feedback=True)])
def test_a_restored_format_goes_on_as_if_never_stopped(form):
    kind = {"error_feedback": True} if isinstance(form, TopK) else {}
    for t, epoch in enumerate((0, 1, 2)):
        restored = type(form)(**kind)
        restored.load_state(form.state())
        for rows in ([0, 1], [2]):
            tensor = torch.randn(len(rows), 9)
            about = of(t, epoch=epoch, samples=rows)
            assert torch.equal(arrived(form, tensor, about), arrived(restored, tensor, about))


@pytest.mark.parametrize("base", [TopK, Fp8])
def test_subclasses_stay_what_they_are_in_either_direction(base):
    class Own(base):
        pass

    for direction in Direction:
        assert type(Own().meant_for(direction)) is Own


def test_error_feedback_stays_in_the_range_of_float16():
    form = TopK(share=0.5).meant_for(Direction.GRADIENTS)
    gradients = torch.tensor([60000.0, 60000.0], dtype=torch.float16)
    scale = torch.tensor(1.0)
    of = MessageTensor((0, 1, 2, 0, 0, 0), loss_scale=scale)
    form.encode(gradients, of)
    (sent, _) = form.encode(gradients, of)
    assert sent.item() == torch.finfo(torch.float16).max
    overflown = torch.tensor([torch.inf, 1.0], dtype=torch.float16)
    assert form.encode(overflown, of)[0].isinf().all()
