"""Inputs are copied for a recomputation only until it is known that no layer changes them."""

import pytest
import torch

from pipetrain.stage.forward_graph import InPlaceCheck


@pytest.mark.parametrize("changes", [False, True])
def test_inputs_are_copied_unless_the_first_forward_left_them_alone(changes):
    check, x = InPlaceCheck(), torch.ones(2)
    (before,) = check.stored((x,))
    assert before is not x
    check.begin((x,))
    check.begin((x,))
    _ = x.mul_(2.0) if changes else x * 2.0
    check.end((x,))
    check.end((x,))
    (after,) = check.stored((x,))
    assert (after is not x) == changes
