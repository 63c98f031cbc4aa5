"""Where layer graphs can be cut."""

import random

import pytest
from support.plans import chain, layer

from pipetrain.planner.cut_states import CutStates
from pipetrain.planner.profile import Profile


def graph(edges, outputs):
    return Profile(tuple(layer(output_bytes=each) for each in outputs), tuple(edges))


DIAMOND = graph([(0, 1), (0, 2), (1, 3), (2, 3)], [1, 10, 100, 1000])
RESIDUAL = graph([(0, 1), (1, 2), (0, 2)], [1, 10, 100])


def cells(count, seed=0):
    """A graph like NASNet-A's: cells of five sums of two branches each, fed by the two cells before."""
    draw, edges, ends = random.Random(seed), [], [0, 0]
    size = 1
    for _ in range(count):
        sums = []
        for _ in range(5):
            pair = []
            for source in draw.sample([*ends, *sums], 2):
                first, length = size, draw.choice((1, 3, 7))
                size += length
                edges += [(source, first), *((i, i + 1) for i in range(first, size - 1))]
                pair.append(size - 1)
            edges += [(each, size) for each in pair]
            sums.append(size)
            size += 1
        edges += [(each, size) for each in sums]
        ends = [ends[1], size]
        size += 1
    return graph(edges, [1] * size)


def layers_of(states):
    return [set(states.layers(0, state)) for state in range(len(states))]


def test_chain_is_cut_after_every_layer():
    states = CutStates.of(chain(layer(output_bytes=5, weight_bytes=7), layer(compute_s=2.0)))
    assert layers_of(states) == [set(), {0}, {0, 1}]
    assert states.compute_s.tolist() == [0, 1, 3]
    assert states.weight_bytes.tolist() == [0, 7, 7]
    assert states.sent_bytes.tolist() == [0, 5, 0]


def test_branches_may_be_cut_at_different_depths():
    states = CutStates.of(DIAMOND)
    assert layers_of(states) == [set(), {0}, {0, 1}, {0, 2}, {0, 1, 2}, {0, 1, 2, 3}]
    assert states.follows[2].tolist() == [False, False, False, False, True, True]


def test_cut_sends_what_layers_behind_it_need_of_those_in_front():
    assert CutStates.of(DIAMOND).sent_bytes.tolist() == [0, 1, 11, 101, 110, 0]
    assert CutStates.of(RESIDUAL).sent_bytes.tolist() == [0, 1, 11, 0]


def test_pipedream_counts_layers_in_front_of_one_branch_of_a_cut_through_two():
    states = CutStates.of(graph([(0, 1), (1, 2), (0, 3), (2, 4), (3, 4)], [1, 10, 100, 1000, 0]))
    both = layers_of(states).index({0, 1, 2, 3})
    assert (states.sent_bytes[both], states.antichain_bytes[both]) == (1100, 1111)
    assert CutStates.of(RESIDUAL).antichain_bytes.tolist() == [0, 1, 11, 100]


def test_graph_with_too_many_states_keeps_a_line_through_its_widest_part():
    profile = graph([(0, 1), (1, 2), (0, 3), (2, 4), (3, 4)], [1] * 5)
    assert len(CutStates.of(profile)) == 8
    narrow = CutStates.of(profile, most=6)
    assert layers_of(narrow) == [set(), {0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}]


@pytest.mark.parametrize("count", [2, 9])
def test_graph_of_cells_that_skip_cells_has_few_enough_states(count):
    profile = cells(count)
    states = CutStates.of(profile)
    assert len(profile.layers) < len(states) <= 1501
    assert layers_of(states)[-1] == set(range(len(profile.layers)))
