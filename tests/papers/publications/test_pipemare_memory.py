from papers.publications.pipemare_memory import (
    delay_plus_one_microbatch,
    kept,
    kept_by_gpipe_with_recomputation,
    kept_with_recomputation,
    memory_ratio,
    order_with_recomputation,
    rounded_up,
    stashed_copies,
    unrounded,
)


def test_figure_9_stages_keep_versions_by_delay_and_segment():
    assert kept(4) == [7, 5, 3, 1]
    assert kept_with_recomputation(16, 4)[:8] == [31, 4, 2, 1, 23, 4, 2, 1]
    assert kept_with_recomputation(5, 3) == [9, 2, 1, 3, 1], "the last segment may be shorter"


def test_memory_left_by_recomputation_is_a_root_of_the_depth():
    assert round(order_with_recomputation(107), 3) == 0.097


def test_gpipe_keeps_minibatch_at_segment_start_else_as_pipemare():
    assert kept_by_gpipe_with_recomputation(8, 4, 5) == [5, 4, 2, 1, 5, 4, 2, 1]
    assert kept_with_recomputation(8, 4)[1:4] == [4, 2, 1]


def test_delays_of_the_last_stage_with_several_microbatches():
    assert [delay(4, 4, 2) for delay in (rounded_up, unrounded, delay_plus_one_microbatch)] == [1, 0.5, 1]


def test_stashed_copies_weigh_each_stage_by_its_delay():
    assert stashed_copies([1, 3], 1, rounded_up) == (1 * 3 + 3 * 1) / 4
    assert memory_ratio(1.0, 3) == 1
    assert memory_ratio(4.0, 3) == 2
