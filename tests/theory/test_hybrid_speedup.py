from fractions import Fraction

from pipetrain.theory.hybrid_speedup import accelerators, hybrid_speedup


def test_half_of_the_epochs_at_twice_the_speed_give_a_third_more():
    assert hybrid_speedup(Fraction(1, 2), Fraction(2)) == Fraction(4, 3)
    assert hybrid_speedup(Fraction(1), Fraction(3)) == 3


def test_four_stages_take_three_accelerators():
    assert accelerators(4) == 3
