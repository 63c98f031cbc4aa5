"""The configurations of a comparison, checked before any of them runs."""

import json
from types import SimpleNamespace

import pytest
from support.made_up_runs import contender
from support.quick_cases import every
from support.refusals import assert_refused

from pipetrain.engine.errors import ConfigError
from pipetrain.planning.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.planning.profiling.profile import profile_of
from pipetrain.reporting.comparison import contenders
from pipetrain.reporting.comparison.contenders import _configurations, _key, contenders_of, distinguished
from pipetrain.reporting.comparison.tuning import Grid
from pipetrain.runner.config.choices import papers_folder
from pipetrain.runner.config.composition import composed, with_choices_of
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
            ("partition=auto profile=null", "", "partition=auto: would measure"),
            ("", "optimizer.lr", "--tune optimizer.lr: must be a setting"),
            ("", "optimizer.lr=0.1,-1", "optimizer.lr=-1: "),
            ("", "optimizer.rate=0.1,1", "optimizer.rate"),
            ("optimizer.lr=0.1", "++optimizer.lr=0.1,0.2", "--tune optimizer.lr: is also set"),
            ("lr_schedule=cosine", "lr_schedule.warmup=0,50", "lr_schedule.warmup=50"),
            ("", "++train.microbatches=1,2", "--tune train.microbatches: may change"),
            ("", "optimizer=sgdm,adamw", "--tune optimizer: may change"),
            ("", "method.stash=true,false", "--tune method.stash: may change"),
        ],
    ),
)
def test_words_that_cannot_be_compared_are_refused(small, words, tune, named):
    with pytest.raises(Exception) as error:  # of Hydra, for a setting that does not exist
        contenders_of([*small, *words.split()], tune.split(), papers_folder())
    assert named in str(error.value)


def test_contenders_have_their_length_grid_and_costs(small):
    first, second = contenders_of([*small, "method=gpipe,hogwild", "train.microbatches=2"])
    assert (first.method, second.method) == ("gpipe", "hogwild")
    assert first.grid == Grid((("optimizer.lr=0.05", "optimizer.lr=0.0167", "optimizer.lr=0.15"),), extends=True)
    assert (first.steps, first.metric) == (4, "loss")
    assert first.costs.step_s[0][0] == 4
    assert first.costs.largest_stage > 4 * 60_000
    assert first.key != second.key


@pytest.mark.slow
def test_given_values_are_tuned_as_they_are(small):
    tune = ["optimizer.momentum=0.9,0.8", "++optimizer.lr=0.1,0.2"]
    (only,) = contenders_of([*small, "method=gpipe"], tune)
    rates = ("++optimizer.lr=0.1", "++optimizer.lr=0.2")
    assert only.grid == Grid((rates, ("optimizer.momentum=0.9", "optimizer.momentum=0.8")))


@pytest.mark.slow
def test_profile_must_be_of_the_model_and_the_batch_size(tmp_path):
    settings = composed([*SMALL, "train.batch_size=16"])
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile_of(settings).to_json()))
    words = [word for word in SMALL if not word.startswith("model=")]
    assert_refused(r"minibatches of 16 samples, .* 32", contenders_of, [*SMALL, f"profile={file}"])
    assert_refused(r"another model than model=resnet20", contenders_of, [*words, "model=resnet20", f"profile={file}"])


@pytest.mark.slow
def test_memory_of_the_devices_is_compared_with_that_of_the_stages(small):
    words = [*small, "method=gpipe", "topology.devices=2"]
    small, large = contenders_of([*words, "topology.memory_gigabytes=1e-6,16"])
    assert (small.costs.fits, large.costs.fits) == (False, True)
    assert small.key == large.key


@pytest.mark.slow
def test_cuts_that_a_profile_plans_are_those_of_every_call(small):
    words = [*small, "partition=auto", "method=pipedream"]
    (only,) = contenders_of(words)
    assert contenders_of(words) == [only]
    (other,) = contenders_of([*words, "topology.speeds=[9,1]"])
    assert other.cut != only.cut
    assert other.key != only.key


def test_baseline_that_is_not_compared_is_refused_before_any_pipeline_is_measured(monkeypatch):
    monkeypatch.setattr(contenders, "_contender", lambda *_: pytest.fail("measured"))
    with pytest.raises(ConfigError, match=r"^--baseline stale: is not compared; choose from gpipe, pipedream$"):
        contenders_of(["model=lenet5", "method=gpipe,pipedream"], baseline="stale")


def test_what_a_preset_varies_is_compared_except_for_seeds_and_what_is_tuned(tmp_path):
    folder = tmp_path / "experiment"
    folder.mkdir()
    varied = "method: gpipe,stale, seed: 0,1, optimizer.lr: 0.1,0.2".replace(", ", "\n      ")
    (folder / "mine.yaml").write_text(f"# @package _global_\nhydra:\n  sweeper:\n    params:\n      {varied}\n")
    words = with_choices_of(tmp_path, ["experiment=mine"])
    assert [each.choices["method"] for each in _configurations(words, (), ["optimizer.lr"]).values()] == [
        "gpipe",
        "stale",
    ]
    every = _configurations([*words, "method=gpipe"], ["method"], ())
    assert [settings.optimizer.lr for settings in every.values()] == [0.1, 0.2]


def test_pipeline_that_cannot_be_predicted_says_why():
    (only,) = contenders_of([*SMALL, "method=pipedream", "partition=finegrained"], ["optimizer.lr=0.1"])
    assert only.costs.step_s == ()
    assert only.costs.notes[0].startswith("not predicted: partition=finegrained")


@pytest.mark.slow
def test_settings_without_effect_on_results_share_their_runs(small):
    kept = [word for word in small if not word.startswith("topology")]
    words = [*kept, "method=pipedream", "topology.devices=2", "topology.gigabytes_per_s=[1e-4],[10]"]
    slow, fast = contenders_of(words, ["optimizer.lr=0.1"])
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
        (only,) = contenders_of([*words, "method=pipedream", "partition=file", f"partition.path={file}"])
        keys.add(only.key)
    assert len(keys) == 2


def test_losses_that_are_recorded_at_other_steps_are_those_of_other_runs():
    job = SimpleNamespace(initial_weights=None, plan=SimpleNamespace(bounds=[(0, 5)], replicas=None))
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


def test_names_are_those_of_the_report_where_settings_are_not_enough():
    every = [contender("gpipe", "model.width=1", "dataset.width=2"), contender("gpipe", "model.width=2")]
    assert [each.name for each in distinguished(every)] == ["dataset.width=2 model.width=1", "model.width=2"]
    plans = [contender("gpipe", f"partition.path={cut}.json", cut=cut) for cut in ("0,2", "0,4")]
    assert [each.name for each in distinguished(plans)] == ["cut=0,2", "cut=0,4"]
