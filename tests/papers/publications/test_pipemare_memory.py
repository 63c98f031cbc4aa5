from papers.publications import pipemare_memory as memory


def test_figure_9_stages_keep_versions_by_delay_and_segment():
    assert memory.kept(4) == [7, 5, 3, 1]
    assert memory.kept_with_recomputation(16, 4)[:8] == [31, 4, 2, 1, 23, 4, 2, 1]
    assert memory.kept_with_recomputation(5, 3) == [9, 2, 1, 3, 1], "the last segment may be shorter"
    assert round(memory.order_with_recomputation(107), 3) == 0.097  # a root of the depth


def test_gpipe_keeps_minibatch_at_segment_start_else_as_pipemare():
    assert memory.kept_by_gpipe_with_recomputation(8, 4, 5) == [5, 4, 2, 1, 5, 4, 2, 1]
    assert memory.kept_with_recomputation(8, 4)[1:4] == [4, 2, 1]


def test_delays_of_the_last_stage_with_several_microbatches():
    delays = (memory.rounded_up, memory.unrounded, memory.delay_plus_one_microbatch)
    assert [delay(4, 4, 2) for delay in delays] == [1, 0.5, 1]


def test_stashed_copies_weigh_each_stage_by_its_delay():
    assert memory.stashed_copies([1, 3], 1, memory.rounded_up) == (1 * 3 + 3 * 1) / 4
    assert [memory.memory_ratio(each, 3) for each in (1.0, 4.0)] == [1, 2]
