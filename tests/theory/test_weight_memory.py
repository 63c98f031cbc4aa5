from pipetrain.theory.weight_memory import memory_ratio, one_step_more, rounded_up, stashed_copies, unrounded


def test_delays_of_the_last_stage_with_several_microbatches():
    assert [delay(4, 4, 2) for delay in (rounded_up, unrounded, one_step_more)] == [1, 0.5, 1]


def test_stashed_copies_weigh_each_stage_by_its_delay():
    assert stashed_copies([1, 3], 1, rounded_up) == (1 * 3 + 3 * 1) / 4
    assert memory_ratio(1.0, 3) == 1
    assert memory_ratio(4.0, 3) == 2
