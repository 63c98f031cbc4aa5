"""Memory that is lent again once nobody reads it, and not before."""

from collections import deque

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from pipetrain.engine.weights import buffer_pool
from pipetrain.engine.weights.buffer_pool import WeightBufferPool

WEIGHTS = {"w": torch.randn(4, 6), "b": torch.randn(3)}


def storages(*sets):
    """References to the storages of these sets, which tell whether they are still in memory."""
    return [StorageWeakRef(tensor.untyped_storage()) for tensors in sets for tensor in tensors.values()]


def sets_alive(references):
    newest = {reference.cdata: reference for reference in references}  # of storages that took the same place
    return sum(not reference.expired() for reference in newest.values())


def pointers(tensors):
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


@pytest.fixture
def pool():
    return WeightBufferPool()


def test_memory_is_lent_again_once_its_last_reader_is_gone(pool):
    first = pool.copy(WEIGHTS)
    place, second = pointers(first), pool.copy(WEIGHTS)
    assert not set(pointers(second).values()) & set(place.values())
    del first
    assert pointers(pool.empty_like(WEIGHTS)) == place


@pytest.mark.parametrize("read", [lambda w: w[1:], lambda w: w.detach(), nn.Parameter])
def test_view_alias_or_parameter_on_lent_memory_is_a_reader(pool, read):
    copies = pool.copy(WEIGHTS)
    reader, value = read(copies["w"]), WEIGHTS["w"].clone()
    del copies
    place = pointers(pool.empty_like(WEIGHTS))["w"]
    assert reader.data_ptr() != place
    assert value.equal(WEIGHTS["w"])


def test_graph_that_saved_lent_memory_counts_as_a_reader(pool):
    leaf = pool.copy(WEIGHTS)["w"].requires_grad_()
    x = torch.randn(2, 6, requires_grad=True)
    output = x @ leaf.T
    del leaf
    for _ in range(2):
        for memory in pool.empty_like(WEIGHTS).values():
            memory.zero_()
    (gradient,) = torch.autograd.grad(output.sum(), x)
    torch.testing.assert_close(gradient, WEIGHTS["w"].sum(0).expand(2, 6))


def test_lent_memory_has_the_form_of_the_weight(pool):
    weight = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).double()
    lent = pool.empty_like({"w": weight})["w"]
    assert (lent.shape, lent.stride(), lent.dtype) == (weight.shape, weight.stride(), weight.dtype)


def test_freed_memory_is_gone_and_what_is_read_stays(pool):
    kept, dropped = pool.copy(WEIGHTS), pool.copy(WEIGHTS)
    dropped_place, references = pointers(dropped), storages(dropped)
    del dropped
    pool.free()
    assert all(kept[name].equal(WEIGHTS[name]) for name in WEIGHTS)
    assert sets_alive(references) == 0
    place = pointers(kept)
    del kept
    assert pointers(pool.empty_like(WEIGHTS)) == place != dropped_place


def test_adopted_gradient_is_lent_where_memory_was_asked_for(pool):
    held = pool.empty_like({"w": WEIGHTS["w"]})
    gradients = {name: torch.ones_like(weight) for name, weight in WEIGHTS.items()}
    place = pointers(gradients)
    pool.donate(gradients)
    other = pool.empty_like({"w": WEIGHTS["w"]})
    assert other["w"].data_ptr() != place["w"]  # somebody still reads it
    not_asked_for = storages({"b": gradients["b"]})
    del gradients
    assert pool.empty_like({"w": WEIGHTS["w"]})["w"].data_ptr() == place["w"]
    assert held.keys() == {"w"}
    assert sets_alive(not_asked_for) == 0


def test_memory_that_was_lent_before_goes_before_adopted_memory(pool):
    # or a method would have two sets of weights in memory where it needs one
    held = pool.empty_like(WEIGHTS)
    gradients = {name: torch.ones_like(weight) for name, weight in WEIGHTS.items()}
    pool.donate(gradients)
    place = pointers(pool.empty_like(WEIGHTS))
    del gradients
    assert pointers(pool.empty_like(WEIGHTS)) == place != pointers(held)


@pytest.mark.parametrize(
    "build",
    [
        lambda: torch.ones(4, 6).double(),
        lambda: torch.ones(6, 4).T,
        lambda: torch.ones(8, 6)[:4],
        lambda: torch.ones(1).expand(4, 6),
    ],
    ids=["dtype", "order", "part", "repeated"],
)
def test_gradient_of_another_form_than_its_weight_is_not_adopted(pool, build):
    held, gradients = pool.empty_like(WEIGHTS), {"w": build()}
    references = storages(gradients)
    pool.donate(gradients)
    del gradients
    assert (sets_alive(references), held.keys()) == (0, WEIGHTS.keys())


def test_long_history_is_returned_in_turn_visiting_few_sets(pool, monkeypatch):
    looked = []
    owners = buffer_pool._use_count
    monkeypatch.setattr(buffer_pool, "_use_count", lambda storage: looked.append(storage) or owners(storage))
    history, references = deque(maxlen=100), []
    for count in range(400):
        if count == 200:
            looked.clear()
        history.append(pool.copy(WEIGHTS))
        references += storages({"w": history[-1]["w"]})
        pool.trim()
    assert 0 < len(looked) < 200 * len(WEIGHTS) * 20
    assert sets_alive(references) <= 101


def test_idle_memory_between_used_sets_is_returned_in_time(pool):
    held = [pool.copy(WEIGHTS) for _ in range(50)]
    references = storages(*({"w": each["w"]} for each in held))
    del held[20:30]
    for _ in range(60):
        pool.trim()
        held.append(pool.copy(WEIGHTS))
        references += storages({"w": held[-1]["w"]})
    assert sets_alive(references) == len(held)
    held.clear()
    pool.free()
    assert sets_alive(references) == 0
