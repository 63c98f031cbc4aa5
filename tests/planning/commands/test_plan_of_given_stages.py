"""`pipetrain plan` of stages that are given, and of several values, on a profile from a file."""

import json
from dataclasses import replace

import pytest
from support.cli import refused
from support.quick_cases import every

from pipetrain import cli
from pipetrain.planning.profile.profile import LoaderTime, Profile, ProfiledLayer
from pipetrain.planning.profiling import auto_partition
from pipetrain.planning.tables import prediction_figure, prediction_tables

LAYERS = tuple(ProfiledLayer(f"layer{i}", 0.001, 0.002, 4000, 8000, 16000) for i in range(4))
PROFILE = Profile(LAYERS, ((0, 1), (1, 2), (2, 3)), batch_size=8, bytes_per_s=1e12)


def stored(tmp_path, **changes):
    """The word that takes the profile with these changes."""
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(replace(PROFILE, **changes).to_json()))
    return f"profile={path}"


@pytest.fixture
def profile(tmp_path):
    """A profile of four equal layers, whose messages take no time to speak of."""
    return stored(tmp_path)


@pytest.fixture(autouse=True)
def _figures_are_left_out(monkeypatch):
    """Drawing takes longer than all else."""
    monkeypatch.setattr(prediction_figure, "draw", lambda _path, _every: None)


def planned(tmp_path, *words):
    assert cli.carry_out(["plan", *words, "-o", str(tmp_path / "out"), "--force"]) == 0
    return json.loads((tmp_path / "out" / "plan.json").read_text())


def predicted(tmp_path, *words):
    return planned(tmp_path, *words)["pipelines"]


@pytest.mark.parametrize(
    ("words", "stages"),
    every(
        2,
        [
            ("", None),
            ("partition.replicas=[1,1]", None),
            ("partition.scale_lr=false", None),
            ("partition.stages=4", 4),
            ("partition=even", 2),
            ("partition=explicit partition.boundaries=[1,3]", 3),
            ("partition=ppv partition.ppv=[1]", 2),
            ("partition=auto topology.cores=4", 4),
            ("partition=auto partition.stages=3", 3),
        ],
    ),
)
def test_stages_are_searched_for_unless_settings_of_partition_give_them(tmp_path, profile, words, stages, monkeypatch):
    monkeypatch.setattr(auto_partition, "usable_cores", lambda: 4)
    found = planned(tmp_path, profile, "method=pipedream", *words.split())
    assert ("plan" in found["pipelines"][0]) == (stages is None)
    if stages is not None:
        assert len(found["stages"]) == stages


def test_several_values_without_stages_have_the_best_ones_of_each(tmp_path, profile):
    words = ["method=pipedream", "topology.devices=4", "topology.gigabytes_per_s=[1e3]", "optimizer=sgd"]
    words += ["topology.update_gigabytes_per_s=1e6"]
    fast, slow = (planned(tmp_path, profile, *words, f"topology.speeds=[1,1,{each},1]") for each in (1, 0.1))
    found = planned(tmp_path, profile, *words, "topology.speeds=[1,1,0.1,1],[1,1,1,1]")
    seconds = [case["time_per_minibatch_s"] for case in found["pipelines"]]
    assert seconds == pytest.approx([slow["time_per_minibatch_s"], fast["time_per_minibatch_s"]], rel=1e-3)
    assert [stage["layers"] for stage in found["stages"]] == [stage["layers"] for stage in fast["stages"]]
    file = tmp_path / "fastest.json"
    file.write_text(json.dumps(found))
    again = planned(tmp_path, profile, *words, "partition=file", f"partition.path={file}")
    assert again["time_per_minibatch_s"] == found["time_per_minibatch_s"] == min(seconds)


def test_pipeline_that_does_not_fit_is_marked_and_never_the_fastest(tmp_path, profile, capsys):
    words = ["method=pipedream", "partition.stages=2", "train.recompute=false,true", "topology.cores=2"]
    free = planned(tmp_path, profile, *words)
    kept, recomputed = free["pipelines"]
    assert free["time_per_minibatch_s"] == kept["time_per_minibatch_s"] < recomputed["time_per_minibatch_s"]
    least = max(stage["memory_bytes"] for stage in recomputed["stages"])
    capsys.readouterr()
    limited = planned(tmp_path, profile, *words, f"topology.memory_gigabytes={least / 1e9}")
    assert limited["time_per_minibatch_s"] == recomputed["time_per_minibatch_s"]
    rows = capsys.readouterr().out.splitlines()[2:4]
    assert [("too much" in row, "<- fastest" in row) for row in rows] == [(True, False), (False, True)]


def test_searched_pipelines_of_a_profile_without_batch_size_take_that_of_the_run(tmp_path):
    unknown = stored(tmp_path, batch_size=None)
    cases = predicted(tmp_path, unknown, "method=pipedream", "train.batch_size=4,8")
    assert [case["batch_size"] for case in cases] == [4, 8]


@pytest.mark.slow
def test_schedules_are_compared_and_what_cannot_run_is_left_out(tmp_path, capsys):
    layers = tuple(ProfiledLayer(f"layer{i}", 0.001, 0.002, 4000, 8000, 16000) for i in range(8))
    eight = stored(tmp_path, layers=layers, edges=tuple((i, i + 1) for i in range(7)))
    words = ["topology.devices=4", "planner.straight=true", "method=naive_async,gpipe", "train.microbatches=4"]
    every = planned(tmp_path, eight, *words, "schedule=1f1b,interleaved_1f1b,1f1b_v,zb_v,torch_dualpipev")["pipelines"]
    found = {case["schedule"]: (len(case["stages"]), case["staleness"]) for case in every}
    assert found == {"1f1b": (4, 1), "interleaved_1f1b": (8, 0), "1f1b_v": (8, 1), "zb_v": (8, 0)}
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out: ")]
    assert len(lines) == 10 - 4
    assert any(line.endswith("method=naive_async does not work with schedule=zb_v") for line in lines)
    message = "method=gpipe does not work with schedule=1f1b; use schedule="
    refused("plan", eight, *words[:2], "method=gpipe", "schedule=1f1b,1f1b_v", cwd=tmp_path, message=message)


@pytest.mark.parametrize(
    ("words", "staleness"),
    every(
        2,
        [
            ("method=pipedream partition.stages=4", 3),
            ("method=pipedream partition.stages=4 train.microbatches=2", 2),
            ("method=naive_async schedule=1f1b_v partition.stages=4", 1),
            ("method=pipedream_2bw partition.stages=4 train.microbatches=4", 1),
            ("method=gpipe partition.stages=4", 0),
            ("method=hogwild partition.stages=4 executor=simulated", None),
        ],
    ),
)
def test_prediction_has_the_largest_staleness_of_a_forward(tmp_path, profile, words, staleness):
    (case,) = predicted(tmp_path, profile, *words.split())
    assert case["staleness"] == staleness


def test_prediction_compares_methods_and_marks_fastest(tmp_path, profile, capsys, monkeypatch):
    monkeypatch.undo()
    cases = predicted(tmp_path, profile, "method=gpipe,pipedream", "partition.stages=2,4", "train.microbatches=4")
    periods = {(case["method"], case["D"]): case["time_per_minibatch_s"] for case in cases}
    assert periods["gpipe", "2"] == pytest.approx(0.006 * (4 + 1) / 4, rel=1e-4)
    assert periods["gpipe", "4"] == pytest.approx(0.003 * (4 + 3) / 4, rel=1e-4)
    assert periods["pipedream", "2"] == pytest.approx(0.006, rel=1e-4)
    assert periods["pipedream", "4"] == pytest.approx(0.003, rel=1e-4)
    assert (tmp_path / "out" / "plan.png").read_bytes()[:4] == b"\x89PNG"
    (marked,) = [line for line in capsys.readouterr().out.splitlines() if "<- fastest" in line]
    assert marked.split()[:3] == ["pipedream", "1f1b", "4"]


def test_traffic_is_per_minibatch_if_a_batch_size_is_unknown(tmp_path, profile, capsys):
    unknown = tmp_path / "unknown.json"
    unknown.write_text(json.dumps(replace(PROFILE, batch_size=None).to_json()))
    predicted(tmp_path, f"{profile},{unknown}", "method=pipedream", "partition.stages=2")
    head, *rows = capsys.readouterr().out.splitlines()[1:4]
    assert "sent per minibatch" in head
    assert ["  8 kB  " in row for row in rows] == [True, True]


def test_prediction_of_one_pipeline_shows_its_stages(tmp_path, profile, capsys):
    words = ["method=pipedream", "partition=explicit", "partition.boundaries=[1]", "topology.gigabytes_per_s=[0.002]"]
    (case,) = predicted(tmp_path, profile, *words)
    assert [stage["num_layers"] for stage in case["stages"]] == [1, 3]
    assert case["bound_by"] == "stage 1"
    assert case["link_busy"] == pytest.approx([0.002 / 0.009])
    assert "layer1 to layer3" in capsys.readouterr().out


def test_prediction_with_recomputation_shows_its_time(tmp_path, profile, capsys):
    (case,) = predicted(tmp_path, profile, "method=gpipe", "partition.stages=2", "train.recompute=true")
    assert [stage["recompute_s"] for stage in case["stages"]] == [0.002, 0.002]
    assert "forward  recompute  backward" in capsys.readouterr().out


def test_predicted_stages_on_shared_cores_slow_each_other(tmp_path, profile, capsys):
    words = ["method=pipedream", "partition.stages=4", "optimizer=sgd", "topology.cores=2"]
    (case,) = predicted(tmp_path, profile, *words)
    assert case["time_per_minibatch_s"] == pytest.approx(4 * 0.003 / 2, rel=1e-4)
    assert case["cores_busy"] == pytest.approx([1.0], abs=1e-3)
    assert case["bound_by"] == "the cores"
    assert "cores: 100.0% busy" in capsys.readouterr().out
    (of_two,) = predicted(tmp_path, profile, *words, "topology.workers=[2,2]", "topology.gigabytes_per_s=[1e3,1e3]")
    assert of_two["time_per_minibatch_s"] == pytest.approx(0.003, rel=1e-4)
    assert of_two["cores_busy"] == pytest.approx([1.0, 1.0], abs=1e-3)


@pytest.mark.parametrize(
    ("words", "seconds", "note"),
    [
        ("", 4 * 0.003 / 2, "4 processes share 2 cores; topology.cores=4"),
        ("topology.devices=4", 4 * 0.003 / 2, "4 processes share 2 cores; topology.cores=4"),
        ("topology.gigabytes_per_s=[1e3]", 0.003, "4 devices computes by itself; topology.cores=2"),
        ("topology.cores=4", 0.003, ""),
    ],
)
def test_cpu_stages_share_cores_unless_machines_are_described(tmp_path, capsys, words, seconds, note):
    measured = stored(tmp_path, provenance={"device": "cpu", "threads": 1, "cores": 2})
    words = ["method=pipedream", "partition.stages=4", "topology.update_gigabytes_per_s=1e6", *words.split()]
    (case,) = predicted(tmp_path, measured, *words)
    assert case["time_per_minibatch_s"] == pytest.approx(seconds, rel=1e-4)
    shown = capsys.readouterr().out
    assert note in shown
    assert ("assumed" in shown) == bool(note)


@pytest.mark.slow
def test_prediction_warns_if_one_microbatch_cannot_fill_pipeline(tmp_path, profile, capsys):
    predicted(tmp_path, profile, "method=gpipe,pipedream", "partition.stages=2")
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "microbatches=1: under schedule=gpipe only one of the 2 stages" in line]
    assert not [line for line in lines if "schedule=1f1b only" in line]
    predicted(tmp_path, profile, "method=gpipe,pipedream", "partition.stages=2", "train.microbatches=4")
    assert "warning" not in capsys.readouterr().out


def test_each_thread_of_the_profile_takes_a_core(tmp_path):
    words = ["method=pipedream", "partition.stages=2", "topology.cores=2", "topology.update_gigabytes_per_s=1e6"]
    (case,) = predicted(tmp_path, stored(tmp_path, provenance={"device": "cpu", "threads": 2}), *words)
    assert case["time_per_minibatch_s"] == pytest.approx(2 * 0.006, rel=1e-4)


def test_cores_of_a_profile_of_gpus_are_refused(tmp_path):
    words = [stored(tmp_path, provenance={"device": "cuda"}), "partition.stages=2", "topology.cores=2"]
    refused("plan", *words, cwd=tmp_path, message="topology.cores=2: the profile was measured on cuda")


def test_plan_with_replicas_is_predicted_from_its_file(tmp_path, profile):
    words = ["topology.devices=3", "planner.cost_model=pipedream_paper"]
    assert cli.carry_out(["plan", profile, *words, "-o", str(tmp_path / "plan")]) == 0
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text())
    path = f"partition.path={tmp_path / 'plan' / 'plan.json'}"
    (case,) = predicted(tmp_path, profile, *words, "method=pipedream", "partition=file", path)
    assert [stage["replicas"] for stage in case["stages"]] == [stage["replicas"] for stage in plan["stages"]] != [1] * 3
    assert case["time_per_minibatch_s"] == pytest.approx(plan["time_per_minibatch_s"], rel=1e-4)


def test_predicted_replicas_take_turns_and_average_gradients(tmp_path, profile):
    words = ["method=pipedream", "partition=explicit", "partition.boundaries=[2]", "partition.replicas=[2,1]"]
    (case,) = predicted(tmp_path, profile, *words, "topology.gigabytes_per_s=[1e3]", "optimizer=sgd")
    assert [stage["replicas"] for stage in case["stages"]] == [2, 1]
    assert case["time_per_minibatch_s"] == pytest.approx(0.006, rel=1e-4)
    assert [stage["idle"] for stage in case["stages"]] == pytest.approx([0.5, 0.0], abs=1e-3)
    # a minibatch's activations and gradients go over the cut, and half of the weights, twice, between the replicas
    assert case["sent_bytes"] == 2 * 4000 + 16000
    # two versions and a gradient of 16 kB, and two minibatches of 32 kB, on each replica; the last sends both gradients
    last = 2 * 16000 + 32000 + 2 * 3 * 4000
    assert [stage["memory_bytes"] for stage in case["stages"]] == [3 * 16000 + 2 * 32000, last]


@pytest.mark.parametrize(("overlap", "seconds"), [("true", (0.004 + 0.048) / 3), ("false", (0.012 + 0.048) / 3)])
def test_replicas_over_slow_links_wait_for_gradient_mean(tmp_path, profile, overlap, seconds):
    words = ["method=data_parallel", "partition.stages=1", "partition.replicas=[3]", f"planner.overlap={overlap}"]
    speed = 4 / 3 * 32000 / 0.048 / 1e9
    (case,) = predicted(tmp_path, profile, *words, f"topology.gigabytes_per_s=[{speed}]")
    assert case["time_per_minibatch_s"] == pytest.approx(seconds, rel=1e-4)


@pytest.mark.slow
def test_clipping_and_fp16_have_synchronous_updates_wait_for_all_backwards(tmp_path, profile):
    words = ["partition=explicit", "partition.boundaries=[1]", "train.microbatches=4", "optimizer=sgdm"]
    words += ["topology.update_gigabytes_per_s=0.1"]  # the last stage updates during the first one's last backward

    def seconds(method, *more):
        (case,) = predicted(tmp_path, profile, f"method={method}", *words, *more)
        return case["time_per_minibatch_s"], [stage["update_s"] for stage in case["stages"]]

    (free, updates), (clipped, _) = seconds("gpipe"), seconds("gpipe", "optimizer.clip_norm=1")
    assert updates[1] > 0.0005
    assert clipped == pytest.approx(free + 0.0005, abs=1e-5)
    assert seconds("gpipe", "train.precision=fp16")[0] == clipped
    assert seconds("pipedream", "optimizer.clip_norm=1") == seconds("pipedream")


def test_speed_of_a_device_counts_for_updates_and_reading(tmp_path, profile):
    stored(tmp_path, reading=LoaderTime(inputs_s=0.001, targets_s=0.002))
    words = ["method=pipedream", "partition.stages=2", "topology.update_gigabytes_per_s=0.1"]
    equal, unequal = (
        predicted(tmp_path, profile, *words, f"topology.speeds=[1,{speed}]")[0]["stages"] for speed in (1, 0.5)
    )
    for name in ("forward_s", "backward_s", "update_s", "reading_s"):
        assert unequal[0][name] == pytest.approx(equal[0][name])
        assert unequal[1][name] == pytest.approx(2 * equal[1][name])
        assert equal[1][name] > 0


def test_milliseconds_have_at_most_a_thousandth():
    shown = [prediction_tables.milliseconds(each) for each in (0.0012345, 0.9994, 0.9997, 1.2345)]
    assert shown == ["1.23", "999", "1,000", "1,234"]


@pytest.mark.parametrize(
    ("words", "message"),
    every(
        3,
        [
            ("schedule=torch_dualpipev method=gpipe partition.stages=2 train.microbatches=2", "has no operation list"),
            ("partition=finegrained partition.stages=2", "cuts layers apart"),
            ("topology.devices=2 partition.stages=4", "topology.devices=2: 2 devices, and the pipeline needs 4"),
            ("partition=explicit partition.boundaries=[7]", "the model has 4 layers"),
            ("partition.replicas=[2,1,1] partition.stages=2", "a number for each of 2 stages"),
            ("method=asp partition.replicas=[2] partition.stages=1 executor=simulated", "method=data_parallel can be"),
            ("topology.latency_s=-1", "topology.latency_s=-1"),
            ("topology.cores=0", "topology.cores=0: "),
            ("method=gpipe partition.stages=4 phases=[{steps:3},{schedule:looped_bfs}]", "in different processes"),
        ],
    ),
)
def test_what_cannot_be_predicted_is_refused_in_one_line(tmp_path, profile, words, message):
    refused("plan", profile, "-o", str(tmp_path / "out"), *words.split(), cwd=tmp_path, message=message)
    assert not (tmp_path / "out").exists()


def test_process_with_several_stages_takes_and_holds_their_sum(tmp_path, profile, capsys):
    words = ("method=naive_async", "schedule=interleaved_1f1b_continuous", "partition.stages=4", "train.microbatches=2")
    (case,) = predicted(tmp_path, profile, *words)
    stages = case["stages"]
    assert case["time_per_minibatch_s"] == pytest.approx(2 * 0.003, rel=0.01)
    assert [stage["process"] for stage in stages] == [0, 1, 0, 1]
    assert [stage["memory_bytes"] for stage in stages[:2]] == [stage["memory_bytes"] for stage in stages[2:]]
    assert case["bound_by"].startswith("process")
    assert "stage  process  layers" in capsys.readouterr().out
