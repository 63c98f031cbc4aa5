import json
import re

import pytest
from support.small_model import build as small_model
from support.worker_pool import settings, simulated

from pipetrain.engine.errors import ConfigError
from pipetrain.graph.layer_costs import no_passes
from pipetrain.planning.profile.profile import Profile, ProfiledLayer
from pipetrain.planning.profiling import auto_partition
from pipetrain.planning.profiling.auto_partition import AutoPartition
from pipetrain.planning.profiling.predict import ProfiledRun
from pipetrain.runner.config.settings_diff import Difference
from pipetrain.runner.partition.run_plan import Unplanned
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint import store
from pipetrain.runner.training.components.data import build_data
from pipetrain.runner.training.components.model import build_model
from pipetrain.runner.training.preflight import prepare

AUTO = {"_target_": "pipetrain.planning.profiling.auto_partition.AutoPartition"}
MILLISECONDS = (1, 1, 1, 1, 8, 2, 2)


@pytest.fixture
def stored(tmp_path):
    """A profile of the small model whose fifth layer takes as long as all others together."""
    chain = small_model(1, 4)
    layers = tuple(
        ProfiledLayer(label, each / 2000, each / 2000, 100, 10, 100)
        for label, each in zip(chain.labels, MILLISECONDS, strict=True)
    )
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(Profile(layers, tuple((i, i + 1) for i in range(6)), 4, 1e9).to_json()))
    return path


def chosen(stored, stages=None, **changes):
    partition = {**AUTO, "stages": stages}
    return settings("gpipe", partition=partition, profile=str(stored), device="cpu", **changes)


def prepared(tmp_path, *arguments, **changes):
    return prepare(chosen(*arguments, **changes), RunDirectory(tmp_path / "run"))


def replicated(tmp_path, stored, **partition):
    """A run of PipeDream with these options of partition=auto."""
    options = {"profile": str(stored), "device": "cpu", "train": {"epochs": 1}}
    if "replicated" in partition and "replicas" not in partition:
        options["topology"] = {"devices": 3}
    return prepare(settings("pipedream", partition={**AUTO, **partition}, **options), RunDirectory(tmp_path / "run"))


def changed_profile(stored, **changes):
    """Changes the stored profile, and returns it as it was."""
    content = json.loads(stored.read_text())
    stored.write_text(json.dumps({**content, **changes}))
    return content


def bounds(run):
    return [(stage.first, stage.last) for stage in run.plan.stages]


def test_the_slowest_stage_is_as_fast_as_can_be_by_the_profile(tmp_path, stored):
    run = prepared(tmp_path, stored, 3)
    assert bounds(run) == [(0, 4), (4, 5), (5, 7)]
    assert [stage.estimated_seconds for stage in run.plan.stages] == pytest.approx([0.004, 0.008, 0.004])
    assert run.plan.rule == "auto"
    (account,) = [note for note in run.notes if note.startswith("partition=auto")]
    assert re.findall(r"\d+\.\d+ ms", account) == ["8.00 ms", "16.00 ms"]
    assert f"3 stages, cut before layers 4, 5, by profile={stored}: " in account


@pytest.mark.slow
def test_updates_of_a_method_move_the_cut(tmp_path, stored, monkeypatch):
    monkeypatch.setattr("pipetrain.planning.profiling.profile._with_weights", lambda profile, _chain: profile)
    profile = json.loads(stored.read_text())
    profile["layers"][6]["weight_bytes"] = 2 * 10**7  # a pass over them takes 0.8 ms on a CPU

    def cut(method, measured=None, **topology):
        content = {**profile, "provenance": {"device": "cpu"}, "update_bytes_per_s": measured}
        stored.write_text(json.dumps(content))
        wanted = settings(method, partition={**AUTO, "stages": 2}, profile=str(stored), device="cpu", topology=topology)
        run = prepare(wanted, RunDirectory(tmp_path / "run"))
        return bounds(run), [1000 * stage.estimated_seconds for stage in run.plan.stages]

    # fused SGD makes 5 passes; PipeMare copies in 2, follows the changes in 8, and corrects in 3
    assert cut("naive_async") == ([(0, 5), (5, 7)], pytest.approx([12, 4 + 5 * 0.8], abs=0.01))
    assert cut("pipemare") == ([(0, 6), (6, 7)], pytest.approx([14, 2 + 18 * 0.8], abs=0.01))
    assert cut("pipemare", update_gigabytes_per_s=1e6) == ([(0, 5), (5, 7)], pytest.approx([12, 4], abs=0.01))
    # measured at twice the speed that is assumed otherwise
    assert cut("pipemare", 50e9) == ([(0, 5), (5, 7)], pytest.approx([12, 4 + 18 * 0.4], abs=0.01))
    assert cut("pipemare", 1e9, update_gigabytes_per_s=25) == cut("pipemare")


INTERLEAVED = {"_target_": "pipetrain.engine.schedules.interleaved.Interleaved1F1B"}


def test_processes_with_several_stages_are_as_fast_as_can_be(tmp_path, stored):
    changes = {"schedule": INTERLEAVED, "train": {"microbatches": 2}}
    run = prepared(tmp_path, stored, 4, **changes)
    seconds = [stage.estimated_seconds for stage in run.plan.stages]
    assert max(seconds[0] + seconds[2], seconds[1] + seconds[3]) == pytest.approx(0.009)
    (account,) = [note for note in run.notes if note.startswith("partition=auto")]
    assert "4 stages in 2 processes, cut before layers" in account
    assert ProfiledRun.of(chosen(stored, 4, **changes)).cut.num_devices == 2
    with pytest.raises(ConfigError, match=r"partition.stages=3: .* partition.stages=2 or 4 works"):
        prepared(tmp_path, stored, 3, **changes)
    with pytest.raises(ConfigError, match="`topology` has 4 devices, and the stages take 2"):
        prepared(tmp_path, stored, 4, topology={"devices": 4}, **changes)


def test_more_processes_than_cores_are_told(tmp_path, stored, monkeypatch):
    monkeypatch.setattr(auto_partition, "usable_cores", lambda: 2)
    (note,) = [note for note in prepared(tmp_path, stored, 3).notes if "3 devices computes by itself" in note]
    assert "topology.cores=2" in note


@pytest.mark.slow
def test_processes_share_measured_cpu_unless_cores_are_given(tmp_path, stored):
    changed_profile(stored, provenance={"device": "cpu", "threads": 1, "cores": 2})
    assumed, counted, none = (
        [note for note in prepared(tmp_path, stored, 3, topology=given).notes if "3 processes share 2 cores" in note]
        for given in ({}, {"devices": 3}, {"cores": 3})
    )
    assert (assumed, none) == (counted, [])
    assert "topology.cores=3" in assumed[0]


def test_as_many_stages_as_are_fastest_are_taken_and_no_more(tmp_path, stored, monkeypatch):
    monkeypatch.setattr(auto_partition, "usable_cores", lambda: 6)
    run = prepared(tmp_path, stored)
    assert bounds(run) == [(0, 4), (4, 5), (5, 7)]
    assert any("3 stages, of 2 to 6 the best" in note for note in run.notes)
    two = prepared(tmp_path, stored, topology={"devices": 2})
    assert len(bounds(two)) == 2


@pytest.mark.parametrize(
    ("partition", "cut", "replicas", "note"),
    [
        ({"replicated": True}, [(0, 7)], (3,), "1 stage with 3 replicas on 3 devices"),
        # 4 ms, and 12 ms on two devices; half of the layers' time each without
        ({"replicas": [1, 2]}, [(0, 4), (4, 7)], (1, 2), "2 stages with 1-2 replicas on 3 devices"),
    ],
)
def test_replicas_are_planned_where_they_are_asked_for(tmp_path, stored, partition, cut, replicas, note):
    run = replicated(tmp_path, stored, **partition)
    assert (bounds(run), run.plan.replicas, run.plan.to_json()["replicas"]) == (cut, replicas, list(replicas))
    assert any(note in each for each in run.notes)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ({"stages": 3, "replicas": [2, 1]}, r"replicas=\[2, 1\] with partition\.stages=3: "),
        ({"replicated": True, "replicas": [2, 1]}, r"replicas=\[2, 1\] with partition\.replicated=true: "),
        ({"replicas": [1] * 8}, r"8 stages, and the model has 7 parts"),
    ],
)
def test_replicas_of_other_stages_are_refused(tmp_path, stored, partition, message):
    with pytest.raises(ConfigError, match=message):
        replicated(tmp_path, stored, **partition)


@pytest.mark.parametrize(
    ("stages", "topology", "message"),
    [
        (9, {}, r"partition\.stages=9: .*at most 7 stages"),
        (3, {"devices": 2}, r"partition\.stages=3: `topology` has 2 devices"),
        (2, {"memory_gigabytes": 1e-9}, r"topology\.memory_gigabytes=1e-09"),
        (3, {"speeds": [1.0, 1.0]}, r"topology\.speeds=\[1\.0, 1\.0\]: 2 numbers for 3 devices"),
    ],
)
def test_what_cannot_be_planned_is_refused(tmp_path, stored, stages, topology, message):
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, stored, stages, topology=topology)


def test_both_executors_get_the_same_cut(tmp_path, stored):
    simulated = prepared(tmp_path, stored, 2, executor={"name": "simulated"})
    assert bounds(simulated) == bounds(prepared(tmp_path, stored, 2))


@pytest.mark.slow
def test_stages_have_devices_of_their_own_speeds(tmp_path, stored):
    plain = bounds(prepared(tmp_path, stored, 3))
    assert bounds(prepared(tmp_path, stored, 3, topology={"speeds": [1.0, 1.0, 1.0]})) == plain
    assert bounds(prepared(tmp_path, stored, 3, topology={"speeds": [1.0, 1.0, 0.1]})) != plain


def test_a_slow_link_moves_the_cut(tmp_path, stored):
    profile = json.loads(stored.read_text())
    profile["layers"][3]["output_bytes"] = 10**8
    stored.write_text(json.dumps(profile))
    assert bounds(prepared(tmp_path, stored, 2)) != [(0, 4), (4, 7)]
    assert bounds(prepared(tmp_path, stored, 2, topology={"gigabytes_per_s": [1e6]})) == [(0, 4), (4, 7)]


def test_processes_of_an_outer_launcher_are_refused(tmp_path, stored, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="partition=auto: each of the processes that an outer launcher started"):
        prepared(tmp_path, stored, 2)


def test_layers_that_share_a_weight_stay_together(tmp_path, stored, monkeypatch):
    monkeypatch.setattr("pipetrain.engine.models.chain.LayerChain.tied", lambda *_args, **_options: [(3, 4)])
    assert bounds(prepared(tmp_path, stored, 2)) in ([(0, 3), (3, 7)], [(0, 5), (5, 7)])


def test_a_prediction_by_a_stored_profile_keeps_tied_layers_together(stored):
    changed_profile(stored, shared_weights=[{"layers": [0, 4], "weight_bytes": 10}])

    def cut(method, stages):
        partition = {**AUTO, "stages": stages}
        predicted = ProfiledRun.of(settings(method, partition=partition, profile=str(stored), device="cpu"))
        return [(layers[0], layers[-1] + 1) for layers in predicted.cut.stages]

    assert (cut("gpipe", 2), cut("pipedream", 2)) == ([(0, 4), (4, 7)], [(0, 5), (5, 7)])
    with pytest.raises(ConfigError, match=r"partition\.stages=4: the model has 3 parts"):
        cut("pipedream", 4)


def test_a_profile_without_bandwidth_asks_for_one(tmp_path, stored):
    changed_profile(stored, bytes_per_s=None)
    with pytest.raises(ConfigError, match=r"topology\.gigabytes_per_s=null"):
        prepared(tmp_path, stored, 2)


@pytest.fixture
def changed(monkeypatch):
    """Settings that have changed since a checkpoint."""
    settings = []
    changes = lambda *_: [Difference(each, 1, 2) for each in settings]  # noqa: E731
    monkeypatch.setattr(auto_partition, "changes_since", changes)
    return settings


def stages_from(*firsts):
    return [{"first": first, "estimated_seconds": 1.0} for first in firsts]


def planned(tmp_path, stages, replicas=None):
    """A checkpoint that has these planned cuts."""
    return with_progress(RunDirectory(tmp_path).checkpoint(6), planned_stages=stages, replicas=replicas)


def with_progress(folder, **progress):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "progress.json").write_text(json.dumps({"step": 6, **progress}))
    (folder / "config.json").write_text(json.dumps({"settings": {}, "choices": {}}))
    return folder


def test_resumed_run_keeps_cuts_unless_their_causes_changed(tmp_path, stored, changed):
    stages = [{"first": 0, "estimated_seconds": 1.0}, {"first": 5, "estimated_seconds": 2.0}]
    resume, run = planned(tmp_path, stages), chosen(stored, 2)
    kept = auto_partition.stored_cuts(run, resume)
    assert (kept.boundaries, kept.seconds, kept.replicas) == ([5], [1.0, 2.0], (1, 1))
    changed[:] = ["partition.stages"]
    assert auto_partition.stored_cuts(run, resume) is None
    changed[:] = ["train.epochs", "planner.repeats", "planner.bandwidth"]
    assert auto_partition.stored_cuts(run, resume).boundaries == [5]


@pytest.mark.usefixtures("changed")
def test_a_run_that_goes_on_keeps_the_replicas_that_were_planned(tmp_path, stored):
    resume = planned(tmp_path, stages_from(0, 5), [2, 1])
    assert auto_partition.stored_cuts(chosen(stored), resume).replicas == (2, 1)


@pytest.mark.usefixtures("changed")
def test_run_that_goes_on_from_planned_cuts_measures_nothing(tmp_path, stored):
    run, resume = chosen(stored, 2), planned(tmp_path, stages_from(0, 5))
    data = build_data(run)
    chain = build_model(run, data.dataset)
    unplanned = Unplanned(run, chain, data, no_passes, shares_weights=True, resume=resume)
    cuts, notes = auto_partition.plan_cuts(AutoPartition(2), unplanned)
    assert (cuts.boundaries, notes) == ([5], [f"partition=auto: keeps the cuts of {resume}"])
    assert auto_partition.stored_cuts(run, with_progress(tmp_path / "other")) is None


@pytest.mark.usefixtures("changed")
def test_outer_launcher_is_told_the_cuts_of_the_checkpoint(tmp_path, stored, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    run = chosen(stored, 2)
    for replicas, words in ((None, r"partition\.boundaries=\[5\]$"), ([2, 1], r"=\[5\] partition\.replicas=\[2, 1\]$")):
        resume = planned(tmp_path, stages_from(0, 5), replicas)
        unplanned = Unplanned(run, None, None, no_passes, shares_weights=True, resume=resume)
        with pytest.raises(ConfigError, match=f"{resume} are partition=explicit partition.stages=2 .*{words}"):
            auto_partition.plan_cuts(AutoPartition(2), unplanned)


def test_checkpoint_holds_planned_cuts(tmp_path, stored):
    run = chosen(stored, 2, executor={"name": "simulated"}, train={"epochs": 1})
    (tmp_path / "run").mkdir()
    made = prepare(run, RunDirectory(tmp_path / "run"))
    simulated(made)
    folder = store.checkpoints(made.run.path)[-1]
    made.run.plan.unlink(missing_ok=True)
    kept = auto_partition.stored_cuts(run, folder)
    assert kept.boundaries == [made.plan.stages[1].first]
    assert kept.seconds == [stage.estimated_seconds for stage in made.plan.stages]


def test_a_prediction_by_a_stored_profile_is_of_the_same_cut(tmp_path, stored):
    predicted = ProfiledRun.of(chosen(stored, 3))
    assert [(layers[0], layers[-1] + 1) for layers in predicted.cut.stages] == bounds(prepared(tmp_path, stored, 3))
