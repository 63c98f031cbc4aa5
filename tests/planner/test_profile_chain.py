"""The partition rules of a run on a profile without its model."""

import pytest

from pipetrain.errors import ConfigError
from pipetrain.planner.partition_rules import Even, Explicit, Ppv
from pipetrain.planner.profile import Profile, ProfiledLayer
from pipetrain.planner.profile_chain import stages_of_profile

TIMES, WEIGHTS = (4.0, 1.0, 1.0, 1.0, 1.0), (8, 0, 8, 0, 8)
LAYERS = tuple(ProfiledLayer("same", t, t, 1, w, 1) for t, w in zip(TIMES, WEIGHTS, strict=True))
PROFILE = Profile(LAYERS, tuple((i, i + 1) for i in range(4)))


def test_even_stages_balance_the_times_of_the_profile():
    assert stages_of_profile(Even(2), PROFILE) == ((0,), (1, 2, 3, 4))


def test_stages_begin_where_they_are_told_to():
    assert stages_of_profile(Explicit([2, 3]), PROFILE) == ((0, 1), (2,), (3, 4))


def test_placement_vector_counts_the_layers_that_have_weights():
    assert stages_of_profile(Ppv([2]), PROFILE) == ((0, 1, 2), (3, 4))


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ConfigError, match="at most 5 stages"):
        stages_of_profile(Even(6), PROFILE)
