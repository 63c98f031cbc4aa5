"""The configurations of a comparison, checked before any of them runs."""

import json
from types import SimpleNamespace

import pytest
from support.made_up_runs import contender
from support.quick_cases import every

from pipetrain.engine.errors import ConfigError, NoRoomError
from pipetrain.planning.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.planning.profiling.profile import profile_of
from pipetrain.reporting.comparison import contenders
from pipetrain.reporting.comparison.contenders import _key, _varied, contenders_of, cut_key, distinguished
from pipetrain.runner.config.composition import composed
from pipetrain.runner.training.planned_run import plan_run

SMALL = (
    "model=lenet5", "dataset.limit=64", "train.batch_size=32", "train.epochs=2", "partition.stages=2",
    "planner.bandwidth=false", "topology.gigabytes_per_s=[1.25]", "topology.cores=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The settings with a profile that is measured once."""
    file = tmp_path_factory.mktemp("profile") / "profile.json"
    file.write_text(json.dumps(profile_of(composed(SMALL)).to_json()))
    return (*SMALL, f"profile={file}")


@pytest.mark.parametrize(
    ("words", "tune", "named"),
    every(
        7,
        [
            ("seed=3", "", "seed: "),
            ("resume=auto", "", "resume: "),
            ("hydra.run.dir=here", "", "hydra.run.dir: "),
            ("train.target={top1:80}", "", "train.target={'top1': 80}: "),
            ("experiment=pipeoptim/table6_resnet101", "", "train.target={'top1': 66.0}: "),
            ("train.patience=3", "", "train.patience=3: "),
            ("eval.every_epochs=0", "", "eval.every_epochs=0: "),
            ("method=gpipe,pipedream_2bw", "", "train.microbatches=1"),
            ("topology.devices=1", "", "topology.devices=1: "),
            ("profile=missing.json", "", "missing.json"),
            ("", "optimizer.lr", "--tune optimizer.lr: a setting and its values"),
            ("", "optimizer.lr=0.1,0.1", "--tune optimizer.lr=0.1,0.1: a value is given twice"),
            ("", "optimizer.lr=0.1,-1", "optimizer.lr=-1: "),
            ("", "optimizer.rate=0.1,1", "optimizer.rate"),
            ("optimizer.lr=0.1", "++optimizer.lr=0.1,0.2", "--tune ++optimizer.lr: is also among the settings"),
            ("lr_schedule=cosine", "lr_schedule.warmup=0,50", "lr_schedule.warmup=50"),
            ("", "++train.microbatches=1,2", "--tune ++train.microbatches: may change"),
            ("", "optimizer=sgdm,adamw", "--tune optimizer: may change"),
            ("method=gpipe", "optimizer.momentum=0.9,0", "--tune optimizer.momentum=0: changes"),
            ("", "train.ema=null,0.9", "--tune train.ema="),
            ("method=lwp partition.stages=4", "method.stash=false,true", "--tune method.stash=True: changes"),
        ],
    ),
)
def test_words_that_cannot_be_compared_are_refused(small, words, tune, named):
    with pytest.raises(Exception) as error:  # of Hydra, for a setting that does not exist
        contenders_of([*small, *words.split()], tune.split())
    assert named in str(error.value)


def test_contenders_have_their_length_grid_and_costs(small):
    (first, second), _ = contenders_of([*small, "method=gpipe,hogwild", "train.microbatches=2"])
    assert (first.method, second.method) == ("gpipe", "hogwild")
    assert [axis.values for axis in first.axes] == [("0.0167", "0.05", "0.15")]
    assert (first.steps, first.rungs, first.metric) == (4, (2, 4), "loss")
    assert first.costs.step_s[0][0] == 4
    assert first.costs.largest_stage > 4 * 60_000
    assert first.key != second.key


@pytest.mark.slow
def test_trials_are_not_shorter_than_the_warm_up(small):
    words = [
        "method=gpipe",
        "train.epochs=8",
        "lr_schedule=cosine",
        "lr_schedule.unit=epoch",
        "lr_schedule.warmup=0,3,5",
    ]
    tune = ["optimizer.lr=0.01,0.02,0.03,0.04,0.05"]
    found, _ = contenders_of([*small, *words, "lr_schedule.warmup=0,3,5"], tune)
    assert [each.rungs for each in found] == [(4, 8, 16), (8, 16), (16,)]


@pytest.mark.slow
def test_profile_must_be_of_the_model_and_the_batch_size(tmp_path):
    settings = composed([*SMALL, "train.batch_size=16"])
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile_of(settings).to_json()))
    words = [word for word in SMALL if not word.startswith("model=")]
    with pytest.raises(ConfigError, match=r"of minibatches of 16 samples, and the first one has 32"):
        contenders_of([*SMALL, f"profile={file}"])
    with pytest.raises(ConfigError, match=r"of another model than model=resnet20"):
        contenders_of([*words, "model=resnet20", f"profile={file}"])


@pytest.mark.slow
def test_memory_of_the_devices_is_compared_with_that_of_the_stages(small):
    words = [*small, "method=gpipe", "topology.devices=2"]
    (small, large), _ = contenders_of([*words, "topology.memory_gigabytes=1e-6,16"])
    assert (small.costs.fits, large.costs.fits) == (False, True)
    assert small.key == large.key


@pytest.mark.slow
def test_planned_cuts_are_those_of_every_seed(small):
    words = [word for word in small if not word.startswith("partition")]
    (only,), _ = contenders_of([*words, "method=pipedream", "partition=auto", "partition.stages=2"])
    assert "partition=auto" in only.words
    assert only.run_words[-3:-1] == only.cut[:2]
    settings = composed(only.run_words)
    assert settings.choices["partition"] == "explicit"
    assert len(plan_run(settings).plan.stages) == 2
    cut = ("partition=explicit", "partition.boundaries=[4]")
    (again,), _ = contenders_of(
        [*words, "method=pipedream", "partition=auto", "partition.stages=2"],
        cuts={cut_key([*reversed(only.words), "checkpoint.metric=top1"]): cut},
    )
    assert again.cut == cut


def test_configurations_of_which_no_plan_fits_are_left_out(monkeypatch):
    def planned(words, *_):
        if "method=gpipe" not in words:
            raise NoRoomError("topology.memory_gigabytes=1: no plan fits")
        return contender("gpipe")

    monkeypatch.setattr(contenders, "_contender", planned)
    (only,), left_out = contenders_of(["model=lenet5", "method=gpipe,pipedream", "partition.stages=2"])
    assert only.method == "gpipe"
    assert left_out == ["method=pipedream: not compared: topology.memory_gigabytes=1: no plan fits"]
    with pytest.raises(NoRoomError, match="no plan fits"):
        contenders_of(["model=lenet5", "method=stale,pipedream"])


def test_baseline_that_is_not_compared_is_refused_before_any_pipeline_is_measured(monkeypatch):
    monkeypatch.setattr(contenders, "_contender", lambda *_: pytest.fail("measured"))
    with pytest.raises(ConfigError, match=r"^--baseline stale: is not compared; choose from gpipe, pipedream$"):
        contenders_of(["model=lenet5", "method=gpipe,pipedream"], baseline="stale")


def test_what_a_preset_varies_is_compared():
    methods = {words[-1] for words in _varied(["experiment=comparison"], ())}
    assert {"method=gpipe", "method=pipedream"} < methods
    assert not any("seed" in words for words in methods)
    assert list(_varied(["experiment=comparison", "method=gpipe"], ())) == [("experiment=comparison", "method=gpipe")]
    assert list(_varied(["experiment=comparison"], {"method"})) == [("experiment=comparison",)]


@pytest.mark.slow
def test_warm_ups_that_are_tuned_fit_into_trials(small):
    words = ["method=gpipe", "train.epochs=8", "lr_schedule=cosine", "optimizer.lr=0.1", "lr_schedule.unit=step"]
    (only,), _ = contenders_of([*small, *words], ["lr_schedule.warmup=0,1,2,6,7"])
    assert only.rungs == (8, 16)


def test_pipeline_that_cannot_be_predicted_says_why():
    (only,), _ = contenders_of([*SMALL, "method=pipedream", "partition=finegrained"], ["optimizer.lr=0.1"])
    assert only.costs.step_s == ()
    assert only.costs.notes[0].startswith("not predicted: partition=finegrained")


@pytest.mark.slow
def test_settings_without_effect_on_results_share_their_runs(small):
    kept = [word for word in small if not word.startswith("topology")]
    words = [*kept, "method=pipedream", "topology.devices=2", "topology.gigabytes_per_s=[1e-4],[10]"]
    (slow, fast), _ = contenders_of(words, ["optimizer.lr=0.1"])
    assert slow.key == fast.key
    assert slow.costs.step_s[0][1] > fast.costs.step_s[0][1]


@pytest.mark.slow
def test_another_plan_in_the_same_file_makes_other_runs(small, tmp_path):
    file, labels = tmp_path / "plan.json", plan_run(composed(small)).chain.labels
    words = [word for word in small if word != "partition.stages=2"]
    keys = set()
    for cut in (2, 4):
        layers = [tuple(range(cut)), tuple(range(cut, len(labels)))]
        plan = PipelinePlan(tuple(PlannedStage(each, 1, 0.1, 1000) for each in layers), 0.1, 0.2, 0.1, tuple(labels))
        file.write_text(json.dumps(plan.to_json()))
        (only,), _ = contenders_of([*words, "method=pipedream", "partition=file", f"partition.path={file}"])
        keys.add(only.key)
    assert len(keys) == 2


def test_losses_that_are_recorded_at_other_steps_are_those_of_other_runs():
    job = SimpleNamespace(initial_weights=None)
    default, same, other = (
        _key(composed([*SMALL, *words]), job)
        for words in ((), ("log.every_steps=1", "log.progress_seconds=1"), ("log.every_steps=2",))
    )
    assert default == same != other


def test_names_have_the_settings_that_differ_the_method_first():
    every = [contender(m, f"partition.stages={n}", "model=lenet5") for n in (2, 4) for m in ("gpipe", "stale")]
    names = [each.name for each in distinguished(every)]
    assert names == ["gpipe stages=2", "stale stages=2", "gpipe stages=4", "stale stages=4"]
    assert [each.name for each in distinguished(every[:1])] == ["gpipe"]


def test_names_are_whole_where_their_last_parts_are_the_same():
    every = [contender("gpipe", "model.width=1"), contender("gpipe", "dataset.width=2")]
    assert [each.name for each in distinguished(every)] == ["model.width=1", "dataset.width=2"]
    every = [contender("gpipe", "model.width=1", "dataset.width=2"), contender("gpipe", "model.width=2")]
    assert [each.name for each in distinguished(every)] == ["model.width=1 dataset.width=2", "model.width=2"]
