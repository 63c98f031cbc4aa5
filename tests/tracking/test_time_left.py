"""How much longer a run will take."""

from pipetrain.tracking.time_left import RunLength, TimeLeft


def test_last_epoch_may_be_cut_short():
    length = RunLength(10, 4)
    assert (length.epochs, [length.steps_of(epoch) for epoch in (1, 2, 3)]) == (3, [4, 4, 2])


def test_time_left_counts_steps_and_the_evaluations_to_come():
    left = TimeLeft(RunLength(8, 4, [4, 8]), 0)
    assert left.seconds() == 0
    left.add({"kind": "interval", "step": 4, "train_s": 2.0})
    assert left.seconds() == 2.0
    left.add({"kind": "eval", "step": 4, "eval_s": 3.0})
    left.add({"kind": "interval", "step": 6, "train_s": 1.0})
    assert left.seconds() == 2 * 0.5 + 3.0


def test_epoch_is_told_by_three_steps_or_ten_seconds():
    quick, slow = TimeLeft(RunLength(400, 40), 20), TimeLeft(RunLength(30, 40), 0)
    told = []
    for step in (21, 22, 23):
        quick.add({"kind": "interval", "step": step, "train_s": 2.0})
        told.append(quick.of_epoch())
    assert told == [None, None, 80.0]
    slow.add({"kind": "interval", "step": 1, "train_s": 11.0})
    assert slow.of_epoch() == 330.0, "the steps that there are"


def test_time_left_of_a_resumed_run_goes_by_its_own_steps():
    left = TimeLeft(RunLength(8, 4), 4)
    left.add({"kind": "interval", "step": 6, "train_s": 1.0})
    assert left.seconds() == 1.0
