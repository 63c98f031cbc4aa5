import pytest

from pipetrain.errors import ConfigError
from pipetrain.planner.layer_order import topological_order


def test_an_order_that_fits_already_is_kept():
    assert topological_order("abcd", [(0, 1), (0, 2), (1, 3), (2, 3)]) == [0, 1, 2, 3]


def test_the_smallest_index_comes_first_of_those_that_can():
    assert topological_order("abcd", [(3, 0), (1, 0), (2, 1)]) == [2, 1, 3, 0]


def test_a_cycle_is_told_by_its_layers():
    with pytest.raises(ConfigError, match=r"a cycle of layers: (b -> c -> b|c -> b -> c)$"):
        topological_order("abc", [(0, 1), (1, 2), (2, 1)])
