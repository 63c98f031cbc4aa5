"""train.batch_size=auto, with trial runs that have a limit of their own."""

import pytest

from pipetrain import cli
from pipetrain.commands.run import batch_size
from pipetrain.config.composition import composed
from pipetrain.errors import ConfigError
from pipetrain.training.builders import machine
from pipetrain.training.builders.optimizer import build_rate
from pipetrain.training.timetable import timetable_of


@pytest.fixture
def found(monkeypatch):
    """The batch that is found in multiples of a step, if trials end so: number of samples -> exit code, output."""

    def find(step, trial):
        monkeypatch.setattr(batch_size, "trial", lambda _words, samples: trial(samples))
        return batch_size._largest_fitting([], step, 1 << 20)

    return find


def limited(limit):
    out_of_memory = "stage 0 failed: OutOfMemoryError: CUDA out of memory"
    return lambda samples: (0, "") if samples <= limit else (1, out_of_memory)


@pytest.mark.parametrize(("limit", "step"), [(100, 1), (100, 8), (8, 8)])
def test_largest_fitting_batch_is_found_to_a_sixteenth(found, limit, step):
    samples = found(step, limited(limit))
    assert samples % step == 0
    assert limit * 15 / 16 - step < samples <= limit


def test_each_trial_is_told(capsys, found):
    found(1, limited(5))
    assert capsys.readouterr().out.splitlines()[:3] == [
        "train.batch_size=auto: 1 fits",
        "train.batch_size=auto: 4 fits",
        "train.batch_size=auto: 16 is too large",
    ]


def test_batch_that_is_larger_than_an_epoch_is_none(found):
    too_many = (2, "more than the 50 samples of an epoch")
    assert 46 <= found(1, lambda samples: (0, "") if samples <= 50 else too_many) <= 50


def test_device_too_small_for_one_microbatch_each_is_told(found):
    with pytest.raises(ConfigError, match="not even 4 samples fit"):
        found(4, limited(3))


def test_run_that_fails_for_another_reason_is_told_with_it(found):
    with pytest.raises(ConfigError, match="no such file"):
        found(1, lambda _samples: (2, "pipetrain: error: dataset: no such file\n"))


def test_batch_norm_that_needs_two_samples_is_no_failure(found):
    def trial(samples):
        return (2, "model: batch norm of a single sample") if samples == 3 else limited(100)(samples)

    assert found(3, trial) in range(93, 100)
    with pytest.raises(ConfigError, match="not even 3 samples fit"):
        found(3, lambda samples: (2, "batch norm of a single sample") if samples == 3 else limited(5)(samples))


def test_trial_warms_up_within_its_few_steps(monkeypatch):
    tried = []
    monkeypatch.setattr(machine, "device_of", lambda _device: "cuda")
    monkeypatch.setattr(batch_size, "trial", lambda words, samples: (tried.append(words), limited(1)(samples))[1])
    words = ["partition.stages=2", "lr_schedule=cosine", "lr_schedule.warmup=3"]
    batch_size.with_batch_size([batch_size.AUTO, *words])
    settings = composed(tried[0])
    assert settings.train.max_steps == 6
    build_rate(settings, timetable_of(settings, 100))
    batch_size.with_batch_size([batch_size.AUTO, *words[:1]])
    assert not any("lr_schedule" in word for word in tried[-1])


def test_automatic_batch_knows_the_users_choices(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\ndevice: cpu\n")
    with pytest.raises(ConfigError, match="this run is on the CPU"):
        batch_size.with_batch_size(["experiment=mine", batch_size.AUTO], tmp_path)


def test_trials_evaluate_nothing_that_the_run_needs():
    words = ["train.patience=3", "train.min_improvement=0.1", "train.target={loss: 1}", "checkpoint.keep_best=2"]
    assert composed([*words, *batch_size._QUIET]).eval.every_epochs == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [("device=cpu", "this run is on the CPU"), ("seed=0,1", "this is a sweep"), ("method=stale_hybrid", "phases")],
)
def test_automatic_batch_is_refused_where_nothing_can_be_tried(capsys, words, message):
    assert cli.carry_out(["run", "train.batch_size=auto", words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flag", [("--cfg", "job"), ("--info", "config")])
def test_automatic_batch_is_refused_where_the_configuration_is_only_shown(capsys, flag):
    assert cli.carry_out(["run", "train.batch_size=auto", *flag]) == 2
    told = f"train.batch_size=auto: trial runs find the number, and {' '.join(flag)} starts none; give a number"
    assert told in capsys.readouterr().err
