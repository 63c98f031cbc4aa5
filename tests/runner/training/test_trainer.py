"""The trainer on an executor that only keeps count."""

from types import SimpleNamespace
from typing import ClassVar

import pytest
from support.refusals import assert_refused
from support.worker_pool import settings

from pipetrain.engine.errors import DivergedError, LostStageError
from pipetrain.engine.executors.admission_gate import AdmissionGate, BrokenOffError
from pipetrain.engine.executors.base import IntervalTimes
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.losses import NO_METRICS
from pipetrain.engine.schedules import Replicas
from pipetrain.runner.config.schema import TrainConfig
from pipetrain.runner.training.checkpoint.progress import TrainingState
from pipetrain.runner.training.components.data import build_data
from pipetrain.runner.training.early_stopping import EarlyStopping
from pipetrain.runner.training.timetable import Timetable
from pipetrain.runner.training.trainer import Trainer


class Counting:
    """An executor without stages, which gives these metrics one evaluation after the other."""

    stages = ()
    unmeasured = ()
    replicas = Replicas(())

    def __init__(self, metrics):
        self.metrics = list(metrics)
        self.trained = []
        self.hooks = RunHooks()
        self.synchronous = False

    def train(self, _loader, interval):
        minibatches = [t for t in range(interval.minibatches) if self.hooks.gate.admits()]
        self.trained.append((interval.start, interval.start + len(minibatches)))
        return IntervalTimes([])

    def drains_by_itself(self, _interval):
        return self.synchronous

    def evaluate(self, _loader, _metrics):
        metrics = self.metrics.pop(0)
        if metrics is None:
            raise BrokenOffError
        return metrics

    def whole_state(self):
        return {"weight": 1.0}

    def gather(self, values):
        return list(values)

    def exchange(self, value):
        return [value]

    def broadcast_from_last(self, value):
        return value


class Noting:
    """A recorder that keeps the epochs and evaluations of a run."""

    clock = SimpleNamespace(wall_s=1.5)

    def __init__(self):
        self.epochs = []
        self.evaluations = []
        self.drains = []

    def begin(self, _interval):
        pass

    def drain(self, _predicted):
        pass

    def epoch(self, step, _reports):
        self.epochs.append(step)

    def extra_drain(self, step, cause):
        self.drains.append((step, cause))

    def evaluation(self, step, metrics, _seconds):
        self.evaluations.append((step, metrics))


class Decoding:
    """Measures these values of the whole model, one time after the other; nothing in place of None."""

    signatures: ClassVar = {"bleu": "beam:5"}

    def __init__(self, values):
        self.values = list(values)

    def metrics_with(self, state):
        assert state == {"weight": 1.0}
        value = self.values.pop(0)
        return {} if value is None else {"bleu": value}


class Saver:
    """Notes when it is to save a checkpoint, and when to add an evaluation to it, with the evaluation's metrics."""

    def __init__(self):
        self.told = []

    def save(self, state):
        self.told.append(("save", state.step, state.evaluation_due, state.metrics))

    def add_evaluation(self, state):
        self.told.append(("add", state.step, state.evaluation_due, state.metrics))

    @property
    def saved(self):
        return [step for kind, step, *_ in self.told if kind == "save"]


DATA = build_data(settings("gpipe"))


def trainer(metrics=(), target=None, step=0, every=1, decoded=None, stopping=None, **changes):
    """Three epochs of four minibatches."""
    table = Timetable(**{"total_steps": 12, "steps_per_epoch": 4, "evaluate_every": every, "save_every": 0,
                         "save_every_steps": None, "phase_ends": [12], **changes})  # fmt: skip
    job = SimpleNamespace(timetable=table, lower_is_better=())
    components = SimpleNamespace(data=DATA, metrics=NO_METRICS)
    state = TrainingState(target=target, step=step, stopping=stopping)
    decoder = None if decoded is None else Decoding(decoded)
    return Trainer(job, Counting(metrics), components, state, Saver(), Noting(), decoder)


def test_trainer_evaluates_after_epochs_and_saves_at_the_end():
    made = trainer([{"loss": 3.0}, {"loss": 2.0}, {"loss": 1.0}])
    made.run()
    assert made.executor.trained == [(0, 4), (4, 8), (8, 12)]
    assert made.recorder.epochs == [4, 8, 12]
    assert made.recorder.evaluations == [(4, {"loss": 3.0}), (8, {"loss": 2.0}), (12, {"loss": 1.0})]
    assert (made.checkpoints.saved, made.state.step, made.state.reached) == ([12], 12, None)


def test_step_is_saved_before_evaluation_and_metrics_added():
    made = trainer([{"loss": 3.0}, {"loss": 2.0}, {"loss": 1.0}], save_every_steps=2)
    made.run()
    assert made.checkpoints.told == [
        ("save", 2, False, {}), ("save", 4, True, {}), ("add", 4, False, {"loss": 3.0}),
        ("save", 6, False, {}), ("save", 8, True, {}), ("add", 8, False, {"loss": 2.0}),
        ("save", 10, False, {}), ("save", 12, True, {}), ("add", 12, False, {"loss": 1.0}),
    ]  # fmt: skip


@pytest.mark.parametrize("records", [True, False])
def test_weight_that_is_not_finite_ends_the_run_before_it_is_saved(records):
    def ended(_value):
        raise LostStageError(1)  # once the process of the last stage has ended

    made = trainer([{"loss": 3.0}, {"loss": 2.0}], save_every=1)
    names = [None, "head.weight"]
    made.executor.gather = lambda values: names if made.state.step == 8 else list(values)
    made.recorder, made.executor.broadcast_from_last = made.recorder if records else None, ended
    with pytest.raises(DivergedError if records else LostStageError) as caught:
        made.run()
    assert not records or str(caught.value) == "diverged: head.weight is not finite after step 8"
    assert made.checkpoints.saved == [4]


def test_undue_step_reaching_target_is_saved_after_evaluation():
    made = trainer([{"loss": 3.0}, {"loss": 2.0}], {"loss": 2.0})
    made.run()
    assert made.checkpoints.told == [("save", 8, False, {"loss": 2.0})]


@pytest.mark.parametrize("save_every", [0, 1])
def test_run_stopped_in_evaluation_saves_its_step_once(save_every):
    made = trainer([{"loss": 3.0}, None], save_every=save_every)
    made.run()
    assert (made.interrupted, made.state.step, made.state.evaluation_due) == (True, 8, True)
    assert made.checkpoints.told[-1] == ("save", 8, True, {})
    assert [step for kind, step, *_ in made.checkpoints.told if kind == "save"] == [4, 8][1 - save_every :]
    assert made.recorder.evaluations == [(4, {"loss": 3.0})]


def test_run_stopped_in_decoding_records_no_partial_evaluation():
    class BrokenOff:
        def metrics_with(self, _state):
            raise BrokenOffError

    made = trainer(map(dict, LOSSES), save_every=1)
    made.decoder = BrokenOff()
    made.run()
    assert (made.interrupted, made.state.step, made.state.evaluation_due, made.checkpoints.saved) == (
        True,
        4,
        True,
        [4],
    )
    assert made.recorder.evaluations == []
    assert made.executor.hooks.gate.ended_after is not None  # as where a minibatch was refused


@pytest.mark.parametrize(("here", "first"), [(True, ("add", 4)), (False, ("save", 4))])
def test_resumed_run_repeats_stopped_evaluation(here, first):
    made = trainer([{"loss": 3.0}, {"loss": 2.0}, {"loss": 1.0}], step=4, save_every=1)
    made.state.evaluation_due, made.saved_at = True, 4 if here else None
    made.run()
    assert made.checkpoints.told[0] == (*first, False, {"loss": 3.0})
    assert made.executor.trained == [(4, 8), (8, 12)]
    assert [step for step, _ in made.recorder.evaluations] == [4, 8, 12]


def test_resumed_evaluation_at_the_end_trains_nothing():
    made = trainer([{"loss": 1.0}], step=12)
    made.state.evaluation_due, made.saved_at = True, 12
    made.run()
    assert made.executor.trained == []
    assert made.recorder.evaluations == [(12, {"loss": 1.0})]


def test_evaluation_is_due_by_checkpoint_and_settings():
    def due(progress, every=1):
        table = Timetable(12, 4, every, 0, None, [12])
        return TrainingState.of(progress, table, TrainConfig(), "loss").evaluation_due

    assert due({"step": 4, "evaluation_due": True})
    assert not due({"step": 4, "evaluation_due": True}, every=0)
    assert not due({"step": 4})  # as older checkpoints have it
    assert due({"step": 12})  # which the settings at that time had not as the last step
    assert not due({"step": 12, "metrics": {"loss": 1.0}})
    assert not due({})


def test_timed_checkpoint_during_evaluation_is_saved_after_it():
    made = trainer(map(dict, LOSSES))
    gate = made.executor.hooks.gate

    def evaluate(_loader, _metrics):
        gate.openings += len(made.executor.trained) == 1
        return {"loss": 1.0}

    made.executor.evaluate = evaluate
    made.run()
    assert made.checkpoints.told == [
        ("save", 4, False, {"loss": 1.0}),
        ("save", 12, True, {}),
        ("add", 12, False, {"loss": 1.0}),
    ]


def test_trainer_resumed_mid_epoch_goes_on_with_next_step():
    made = trainer([{"loss": 2.0}, {"loss": 1.0}], step=6, every=2, save_every_steps=5)
    made.run()
    assert made.executor.trained == [(6, 8), (8, 10), (10, 12)]
    assert [step for step, _ in made.recorder.evaluations] == [8, 12]
    assert made.checkpoints.saved == [10, 12]


@pytest.mark.parametrize(
    ("target", "steps"),
    [({"loss": 2.0}, 8), ({"top1": 60.0}, 8), ({"loss": 2.0, "top1": 70.0}, 12), ({"perplexity": 0.0}, 12)],
)
def test_trainer_stops_where_every_metric_has_reached_its_target(target, steps):
    made = trainer(
        [
            {"loss": 3.0, "top1": 50.0, "perplexity": 9.0},
            {"loss": 2.0, "top1": 60.0, "perplexity": 8.0},
            {"loss": 1.0, "top1": 70.0, "perplexity": 7.0},
        ],
        target,
    )
    made.run()
    assert (made.state.step, made.checkpoints.saved) == (steps, [steps])
    reached = "perplexity" not in target
    assert made.state.reached == ({"step": steps, "epoch": steps // 4, "wall_s": 1.5} if reached else None)


@pytest.mark.parametrize(("metric", "steps"), [("loss", 12), ("top1", 8)])
def test_trainer_stops_when_patience_ends_and_saves(metric, steps):
    course = [{"loss": 3.0, "top1": 50.0}, {"loss": 2.0, "top1": 40.0}, {"loss": 1.0, "top1": 30.0}]
    made = trainer(course, stopping=EarlyStopping(metric, 1))
    made.run()
    assert (made.state.step, made.checkpoints.saved) == (steps, [steps])
    assert (made.state.stopped_early(made.job.timetable) is not None) is (steps < 12)


def test_metric_of_texts_ends_a_run_by_decoding_evaluations():
    course = [{"loss": 3.0}, {"loss": 2.0}, {"loss": 1.0}]
    made = trainer(course, decoded=[20.0, 10.0], decode_every=2, stopping=EarlyStopping("bleu", 1))
    made.run()
    assert made.state.stopping.fields() == {"metric": "bleu", "best": 20.0, "epoch": 2, "evaluations": 1}


def test_target_without_evaluation_is_refused_with_known_ones():
    made = trainer([{"loss": 3.0, "top1": 50.0}], {"top5": 90.0})
    assert_refused(r"train.target: no metric top5; an evaluation gives loss, top1", made.run)


LOSSES = [{"loss": 3.0}, {"loss": 2.0}, {"loss": 1.0}]


def test_whole_model_metrics_are_recorded_when_due():
    made = trainer(map(dict, LOSSES), decoded=[10.0, 12.0], decode_every=2)
    made.run()
    assert [metrics for _, metrics in made.recorder.evaluations] == [
        {"loss": 3.0}, {"loss": 2.0, "bleu": 10.0}, {"loss": 1.0, "bleu": 12.0}
    ]  # fmt: skip
    assert made.state.metrics == {"loss": 1.0, "bleu": 12.0}
    assert made.state.signatures == {"bleu": "beam:5"}


@pytest.mark.parametrize(("decoded", "every", "steps"), [([5.0, 25.0], 1, 8), ([25.0], 2, 8), ([None, 30.0], 1, 8)])
def test_whole_model_target_waits_for_its_evaluations(decoded, every, steps):
    made = trainer(map(dict, LOSSES), {"bleu": 25.0}, decoded=decoded, decode_every=every)
    made.run()
    assert made.state.reached == {"step": steps, "epoch": 2, "wall_s": 1.5}


def test_target_that_the_whole_model_does_not_give_is_refused():
    made = trainer(map(dict, LOSSES), {"meteor": 0.3}, decoded=[5.0])
    assert_refused(r"no metric meteor; an evaluation gives loss, bleu", made.run)


@pytest.mark.parametrize(
    ("step", "end", "synchronous", "saves", "drains"),
    [
        (0, 6, False, [4, 6], [6]),
        (0, 6, True, [4, 6], []),
        (0, 4, False, [4], []),  # between two intervals, and saved there already
        (2, 3, False, [4, 5], [2, 5]),  # the settings do not drain where it was resumed either
        (5, 0, False, [5], [5]),
        (0, 0, False, [], []),
    ],
)
def test_stopped_run_saves_its_place_and_notes_its_drain(step, end, synchronous, saves, drains):
    made = trainer([{"loss": 3.0}, {"loss": 2.0}], step=step, save_every=1)
    made.executor.synchronous = synchronous
    made.executor.hooks.gate.end()
    made.executor.hooks.gate.hold()
    made.executor.hooks.gate.shut(end)
    made.run()
    assert (made.interrupted, made.state.step) == (True, step + end)
    assert (made.checkpoints.saved, made.state.extra_drains) == (saves, drains)


def test_unscheduled_drains_are_noted_once_with_cause():
    made = trainer(map(dict, LOSSES), step=5, save_every_steps=3)
    made.state.extra_drains = [2]
    made.run()
    assert made.executor.trained == [(5, 6), (6, 8), (8, 9), (9, 12)]
    assert made.recorder.drains == [(5, "resume")]
    assert made.state.extra_drains == [2, 5]


def paused_before(made, minibatch):
    """The clock asks for a checkpoint before the minibatch of this number, from 1."""
    asked = []
    made.executor.hooks = RunHooks(gate=AdmissionGate(alone=True))
    gate = made.executor.hooks.gate

    def look():
        asked.append(None)
        if len(asked) == minibatch:
            gate.pause()

    gate.before = look


@pytest.mark.parametrize(
    ("minibatch", "trained", "saves", "drains"),
    [
        (7, [(0, 4), (4, 6), (6, 8), (8, 12)], [4, 6, 8, 12], [(6, "clock")]),
        (5, [(0, 4), (4, 4), (4, 8), (8, 12)], [4, 8, 12], []),  # has just been saved
        (1, [(0, 0), (0, 4), (4, 8), (8, 12)], [4, 8, 12], []),  # there is nothing yet
    ],
)
def test_run_that_the_clock_stops_saves_and_goes_on(minibatch, trained, saves, drains):
    made = trainer(map(dict, LOSSES), save_every=1)
    paused_before(made, minibatch)
    made.run()
    assert (made.interrupted, made.state.step) == (False, 12)
    assert made.executor.trained == trained
    assert (made.checkpoints.saved, made.recorder.drains) == (saves, drains)


def test_run_that_is_stopped_at_its_very_end_is_complete():
    made = trainer([{"loss": 3.0}, {"loss": 2.0}, {"loss": 1.0}])
    made.executor.hooks.gate.end()
    made.executor.hooks.gate.hold()
    made.executor.hooks.gate.shut(12)
    made.run()
    assert (made.interrupted, made.state.step, made.checkpoints.saved) == (False, 12, [12])
