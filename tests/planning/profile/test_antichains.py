"""Where layer graphs can be cut."""

from dataclasses import replace

import pytest
from support.plans import cells, chain, graph, layer

from pipetrain.planning.profile.antichains import AntichainStates
from pipetrain.runner.partition.shared_weight import SharedWeight

DIAMOND = graph([(0, 1), (0, 2), (1, 3), (2, 3)], [1, 10, 100, 1000])
RESIDUAL = graph([(0, 1), (1, 2), (0, 2)], [1, 10, 100])


def layers_of(states):
    return [set(states.layers(0, state)) for state in range(len(states))]


def test_chain_is_cut_after_every_layer():
    states = AntichainStates.of(chain(layer(output_bytes=5, weight_bytes=7), layer(compute_s=2.0)))
    assert layers_of(states) == [set(), {0}, {0, 1}]
    assert states.compute_s.tolist() == [0, 1, 3]
    assert states.stage_weight_bytes[0].tolist() == [0, 7, 7]
    assert states.sent_bytes.tolist() == [0, 5, 0]


def test_stage_holds_state_of_its_layers_and_of_shared_weights_once():
    layers = [replace(each, state_bytes=10**i) for i, each in enumerate(DIAMOND.layers)]
    profile = replace(DIAMOND, layers=tuple(layers), shared_weights=(SharedWeight((1, 3), 0, state_bytes=5),))
    states = AntichainStates.of(profile)
    for first in range(len(states)):
        for last in range(len(states)):
            held = states.layers(first, last) if states.follows[first, last] else ()
            assert states.stage_state_bytes[first, last] == profile.state_bytes_of(held)


def test_branches_may_be_cut_at_different_depths():
    states = AntichainStates.of(DIAMOND)
    assert layers_of(states) == [set(), {0}, {0, 1}, {0, 2}, {0, 1, 2}, {0, 1, 2, 3}]
    assert states.follows[2].tolist() == [False, False, False, False, True, True]


def test_cut_sends_what_layers_behind_it_need_of_those_in_front():
    assert AntichainStates.of(DIAMOND).sent_bytes.tolist() == [0, 1, 11, 101, 110, 0]
    assert AntichainStates.of(RESIDUAL).sent_bytes.tolist() == [0, 1, 11, 0]


def test_pipedream_counts_layers_before_one_branch_of_a_cut():
    states = AntichainStates.of(graph([(0, 1), (1, 2), (0, 3), (2, 4), (3, 4)], [1, 10, 100, 1000, 0]))
    both = layers_of(states).index({0, 1, 2, 3})
    assert (states.link_bytes[both], states.antichain_bytes[both]) == (2 * 1100, 2 * 1111)
    assert AntichainStates.of(RESIDUAL).antichain_bytes.tolist() == [0, 2, 22, 200]


def test_graph_with_too_many_states_keeps_line_at_widest_part():
    profile = graph([(0, 1), (1, 2), (0, 3), (2, 4), (3, 4)], [1] * 5)
    assert len(AntichainStates.of(profile)) == 8
    narrow = AntichainStates.of(profile, most=6)
    assert layers_of(narrow) == [set(), {0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}]


@pytest.mark.parametrize("count", [2, 9])
def test_graph_of_cells_that_skip_cells_has_few_enough_states(count):
    profile = cells(count)
    states = AntichainStates.of(profile)
    assert len(profile.layers) < len(states) <= 1501
    assert layers_of(states)[-1] == set(range(len(profile.layers)))


def test_thinned_states_are_spread_and_send_least():
    states = AntichainStates.of(chain(*(layer(1.0, output_bytes=each) for each in (9, 1, 9, 9, 9, 9, 2, 9, 9, 0))))
    assert states.subsampled(11) is states
    thin = states.subsampled(6)
    assert [len(each) for each in layers_of(thin)] == [0, 1, 2, 5, 7, 10]
