from pipetrain.theory.activation_memory import (
    kept,
    kept_by_gpipe_with_recomputation,
    kept_with_recomputation,
    order_with_recomputation,
)


def test_stages_of_figure_9_keep_what_their_delay_and_segment_ask_for():
    assert kept(4) == [7, 5, 3, 1]
    assert kept_with_recomputation(16, 4)[:8] == [31, 4, 2, 1, 23, 4, 2, 1]
    assert kept_with_recomputation(5, 3) == [9, 2, 1, 3, 1], "the last segment may be shorter"


def test_memory_left_by_recomputation_is_a_root_of_the_depth():
    assert round(order_with_recomputation(107), 3) == 0.097


def test_gpipe_keeps_a_minibatch_at_the_first_stage_of_a_segment_and_the_rest_as_pipemare_does():
    assert kept_by_gpipe_with_recomputation(8, 4, 5) == [5, 4, 2, 1, 5, 4, 2, 1]
    assert kept_with_recomputation(8, 4)[1:4] == [4, 2, 1]
