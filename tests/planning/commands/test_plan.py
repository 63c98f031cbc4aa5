"""`pipetrain plan`, and what `pipetrain run partition=file` makes of its file."""

import json

import pytest
from support.cli import TINY, refused, run_here, summary
from support.plans import VGG16
from support.processes import python
from support.quick_cases import every
from support.worker_pool import settings

from pipetrain import cli
from pipetrain.planning.commands.plan import chosen_profile

LENET5 = ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "fc3")
GIGABYTE = "topology.gigabytes_per_s=[3.125]"


def planned(folder, *words):
    assert cli.carry_out(["plan", *words, "-o", str(folder), "--force"]) == 0
    assert (folder / "plan.png").read_bytes()[:4] == b"\x89PNG"
    return json.loads((folder / "plan.json").read_text())


def test_plan_of_vgg16_replicates_its_convolutions_15_times(tmp_path, capsys):
    words = (f"profile={VGG16}", "topology.devices=16", GIGABYTE, "planner.cost_model=pipedream_paper")
    plan = planned(tmp_path, *words, "train.batch_size=128")
    assert [(stage["layers"][0], stage["replicas"]) for stage in plan["stages"]] == [(0, 15), (25, 1)]
    assert plan["time_per_minibatch_s"] == pytest.approx(0.0423406, rel=1e-9)
    assert plan["single_device_time_s"] == pytest.approx(0.672535)
    assert plan["data_parallel_time_s"] == pytest.approx(2 * 15 * 553430176 / 3.125e9 / 16)
    lines = capsys.readouterr().out.splitlines()
    best = next(line for line in lines if line.startswith("best"))
    assert best.split()[1:5] == ["2", "15-1", "42.3", "3,023"]
    assert [each["plan"] for each in plan["pipelines"]] == ["data parallel", "straight", "best"]
    assert [each["bound_by"] for each in plan["pipelines"]] == ["stage 0", "link 0-1", "stage 0"]
    assert "one device takes 673 ms for a minibatch" in lines


def test_plan_in_a_folder_is_replaced_only_by_force(tmp_path, capsys):
    words = f"profile={VGG16}", "topology.devices=2", GIGABYTE, "planner.straight=true"
    plan, folder = planned(tmp_path / "new" / "plan", *words), tmp_path / "new" / "plan"
    shown = capsys.readouterr().out
    assert cli.carry_out(["plan", *words, "-o", str(folder), "train.batch_size=8"]) == 2
    assert f"{folder / 'plan.json'}: exists; --force replaces it" in capsys.readouterr().err
    assert json.loads((folder / "plan.json").read_text()) == plan
    ends = [stage["layers"][-1] for stage in plan["stages"]]  # as a run shows them
    assert all(f"  {layers}  " in shown for layers in (f"0-{ends[0]}", f"{ends[0] + 1}-{ends[1]}"))


def test_profile_of_another_model_than_the_one_that_is_named_is_refused(tmp_path):
    layers = [{"label": "fc", "forward_s": 1, "backward_s": 2, "output_bytes": 3, "weight_bytes": 4}] * 2
    content = {"layers": [{**each, "activation_bytes": 5} for each in layers], "provenance": {"model": "resnet20"}}
    (tmp_path / "r20.json").write_text(json.dumps(content))
    words, message = ("profile=r20.json", GIGABYTE), "profile=r20.json: of model=resnet20, not of model=lenet5"
    for others in ([], ["partition.stages=2"]):
        refused("plan", *words, "model=lenet5", *others, cwd=tmp_path, message=message)
        preset = message.replace("model=lenet5", "model=lenet5 of experiment=comparison")
        refused("plan", *words, "experiment=comparison", *others, cwd=tmp_path, message=preset)
    planned(tmp_path / "plan", f"profile={tmp_path / 'r20.json'}", GIGABYTE, "experiment=comparison", "model=resnet20")
    every = planned(tmp_path / "plan", f"profile={tmp_path / 'r20.json'}", GIGABYTE, "model=resnet20,lenet5")
    assert len(every["pipelines"]) == 1


def test_straight_plan_has_no_replicas_and_is_the_fastest_that_the_settings_allow(tmp_path, capsys):
    fast = "topology.devices=4", "topology.gigabytes_per_s=[100]"
    plan = planned(tmp_path, f"profile={VGG16}", *fast, "planner.straight=true")
    assert [stage["replicas"] for stage in plan["stages"]] == [1] * 4
    times = [each["time_per_minibatch_s"] for each in plan["pipelines"]]
    assert times[0] < times[1] == times[2]
    marked = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines() if line.endswith("<- fastest")]
    assert marked == ["straight", "best"]


@pytest.mark.slow
def test_plan_on_a_cpu_says_whether_devices_share_its_cores(tmp_path, capsys):
    layers = [{"label": f"fc{i}", "forward_s": 0.001, "backward_s": 0.002} for i in range(4)]
    sizes = {"output_bytes": 4, "weight_bytes": 8, "activation_bytes": 16}
    provenance = {"device": "cpu", "threads": 1, "cores": 1, "measured_at": "2026-01-02T03:04:05", "load_average": 0.5}
    content = {"layers": [{**each, **sizes} for each in layers], "bytes_per_s": 1e9, "provenance": provenance}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content))
    shared = planned(tmp_path, f"profile={path}")
    assert shared["time_per_minibatch_s"] == pytest.approx(4 * 0.003)
    measured, assumed = capsys.readouterr().out.splitlines()[5:7]
    assert measured == "measured 2026-01-02 03:04 at load 0.5"
    assert "2 processes share 1 core; topology.cores=2" in assumed
    assert planned(tmp_path, f"profile={path}", "topology.devices=2") == shared
    capsys.readouterr()
    own = planned(tmp_path, f"profile={path}", "topology.gigabytes_per_s=[1]")
    assert own["time_per_minibatch_s"] == pytest.approx(2 * 0.003, rel=1e-3)
    assert "topology.cores=1 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    every(
        3,
        [
            (["profile=none.json"], "profile=none.json: cannot be read"),
            ([f"profile={VGG16}"], "topology.gigabytes_per_s=null: the profile has no measured bandwidth"),
            ([f"profile={VGG16}", GIGABYTE, "topology.workers=[2,2]"], "must have 2 numbers, one for each level"),
            ([f"profile={VGG16}", GIGABYTE, "topology.memory_gigabytes=1"], "no plan fits"),
            (
                [f"profile={VGG16}", GIGABYTE, "planner.cost_model=pipedream_paper", "planner.overlap=false"],
                "planner.overlap=false: planner.cost_model=pipedream_paper",
            ),
        ],
    ),
)
def test_plan_that_cannot_be_made_is_one_line_and_exit_code_2(tmp_path, words, message):
    refused("plan", *words, cwd=tmp_path, message=message)
    assert not (tmp_path / "plan").exists()


@pytest.mark.slow
def test_plan_of_a_stored_profile_needs_no_torch(tmp_path):
    code = (
        "import sys, pipetrain.cli as c\n"
        f"assert c.carry_out(['plan', 'profile={VGG16}', '{GIGABYTE}']) == 0\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "plan").iterdir()) == ["plan.json", "plan.png"]


@pytest.mark.slow
def test_run_trains_plan_and_refuses_plan_of_other_model(tmp_path):
    layers = [
        {"label": label, "forward_s": 1, "backward_s": 2, "output_bytes": 3, "weight_bytes": 4, "activation_bytes": 5}
        for label in LENET5
    ]
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"layers": layers}))
    plan = planned(tmp_path / "plan", f"profile={profile}", GIGABYTE, "topology.devices=5")
    assert max(stage["replicas"] for stage in plan["stages"]) > 1
    words = (*TINY, "train.max_steps=1", "method=pipedream", "executor=simulated", "partition=file", "threads=1")
    run_here(tmp_path / "run", *words, f"partition.path={tmp_path / 'plan' / 'plan.json'}")
    stages = json.loads((tmp_path / "run" / "plan.json").read_text())["stages"]
    assert [list(range(stage["first"], stage["last"])) for stage in stages] == [s["layers"] for s in plan["stages"]]
    assert summary(tmp_path / "run")["replicas"] == [stage["replicas"] for stage in plan["stages"]]
    words = ("model=resnet20", "partition=file", f"partition.path={tmp_path / 'plan' / 'plan.json'}")
    refused = run_here(tmp_path / "other", *words, code=2)
    assert "a plan for another model, of" in refused.stderr


def test_a_stored_profile_takes_the_place_of_a_measurement(tmp_path):
    stored = tmp_path / "graph.txt"
    stored.write_text(
        "node1 -- Input -- forward_compute_time=0, backward_compute_time=0, activation_size=4, parameter_size=0\n"
        "node2 -- Linear -- forward_compute_time=1, backward_compute_time=2, activation_size=8, parameter_size=16\n"
        "\tnode1 -- node2\n"
    )
    found = chosen_profile(settings("gpipe", profile=str(stored)))
    assert [layer.label for layer in found.layers][-1] == "Linear"
