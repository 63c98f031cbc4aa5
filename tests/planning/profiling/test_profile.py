"""How long data is read."""

import json
import os
import time
from dataclasses import replace

import pytest
import torch
from support.refusals import assert_refused
from support.worker_pool import settings
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.planning.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.planning.profile.profile import LoaderTime, MessageCpuTime, Profile, ProfiledLayer, ProfiledWeight
from pipetrain.planning.profiling import profile
from pipetrain.planning.profiling.layer_times import MeasuredModel
from pipetrain.planning.profiling.link_speed import LinkSpeed
from pipetrain.planning.profiling.profile import measure_reading, profile_of
from pipetrain.runner.config.given_objects import with_objects

FROM_FILE = "pipetrain.planning.partition.from_file.PartitionFromPlan"
FINEGRAINED = {"_target_": "pipetrain.runner.partition.finegrained.FineGrained", "stages": 5}


class Counter:
    """Stands for the measurements, whose numbers tell how often there were any."""

    def __init__(self):
        self.layers = self.links = 0

    def measured_model(self, chain, _minibatch, _how, _tick):
        self.layers += 1
        layers = tuple(ProfiledLayer(label, float(self.layers), 0.0, 0, 0, 0) for label in chain.labels)
        return MeasuredModel(layers, 5e9 * self.layers)

    def measured_link(self, _device):
        self.links += 1
        return LinkSpeed(1e9 * self.links, MessageCpuTime(1e-4, 1e-10))


@pytest.fixture
def counter(monkeypatch):
    monkeypatch.setattr(profile, "_profiles", {})
    profile._link.cache_clear()
    counter = Counter()
    monkeypatch.setattr(profile, "measured_model", counter.measured_model)
    monkeypatch.setattr(profile, "measured_link", counter.measured_link)
    return counter


def measured_profile(*, bandwidth=True, given=(), **changes):
    boundaries = {"_target_": "pipetrain.runner.partition.rules.Explicit", "boundaries": [3]}
    chosen = settings(
        "gpipe", **{"planner": {"bandwidth": bandwidth}, "device": "cpu", "partition": boundaries, **changes}
    )
    return profile_of(with_objects(chosen, dict(given)))


@pytest.mark.parametrize(
    ("options", "threads"), [({}, 4), ({"replicas": [2, 2]}, 2), ({"_target_": FROM_FILE, "path": "plan.json"}, 2)]
)
@pytest.mark.usefixtures("counter")
def test_profile_has_the_threads_of_the_processes(tmp_path, monkeypatch, options, threads):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profile, "usable_cores", lambda: 8)
    stages = tuple(PlannedStage((number,), replicas, 0.1, 1) for number, replicas in enumerate((3, 1)))
    (tmp_path / "plan.json").write_text(json.dumps(PipelinePlan(stages, 0.1, 0.2, 0.1, ("a", "b")).to_json()))
    explicit = {"_target_": "pipetrain.runner.partition.rules.Explicit", "boundaries": [3]}
    chosen = settings("pipedream", device="cpu", partition=options if "path" in options else {**explicit, **options})
    assert profile_of(chosen).provenance["threads"] == threads


@pytest.mark.usefixtures("counter")
def test_profile_has_the_threads_of_processes_with_several_stages(monkeypatch):
    monkeypatch.setattr(profile, "usable_cores", lambda: 8)
    even = {"_target_": "pipetrain.runner.partition.rules.Even", "stages": 4}
    interleaved = {"_target_": "pipetrain.plugins.torch_schedules.schedules.Interleaved1F1B"}
    for microbatches, threads in ((2, 4), (5, 2)):  # a run refuses five
        train = {"batch_size": 10, "microbatches": microbatches}
        chosen = settings("gpipe", device="cpu", partition=even, schedule=interleaved, train=train)
        assert profile_of(chosen).provenance["threads"] == threads


def test_a_profile_says_what_was_measured(counter):
    found = measured_profile(train={"microbatches": 2}, threads=1)
    assert (len(found.layers), found.batch_size) == (7, 4)
    assert (found.bytes_per_s, found.message_work) == (1e9, MessageCpuTime(1e-4, 1e-10))
    assert found.update_bytes_per_s == 5e9
    assert found.is_chain
    assert found.provenance["inputs"] == ["4x1x8x8 float32"]
    assert (found.input_bytes, found.target_bytes) == (4 * 8 * 8 * 4, 4 * 8)
    assert Profile.from_json(found.to_json()).target_bytes == found.target_bytes
    assert (found.provenance["model"], found.provenance["microbatches"]) == ("small", 2)
    assert (counter.layers, counter.links) == (1, 1)


@pytest.mark.usefixtures("counter")
def test_a_profile_has_the_weights_of_its_model_wherever_it_is_from(tmp_path):
    found = measured_profile()
    weights = found.layers[1].weights
    shapes = {"1.conv.weight": (6, 6, 3, 3), "1.conv.bias": (6,), "1.norm.weight": (6,), "1.norm.bias": (6,)}
    assert weights == tuple(ProfiledWeight(name, shape, 4) for name, shape in shapes.items())
    assert found.layers[5].weights == ()
    stored = tmp_path / "profile.json"
    stored.write_text(
        json.dumps(replace(found, layers=[replace(each, weights=None) for each in found.layers]).to_json())
    )
    again = measured_profile(profile=str(stored)), measured_profile()
    assert [each.layers[1].weights for each in again] == [weights] * 2


def test_process_measures_a_model_and_the_link_once(counter):
    assert measured_profile() == measured_profile(seed=9)
    assert measured_profile(train={"batch_size": 8}).layers[0].forward_s == 2.0
    assert (counter.layers, counter.links) == (2, 1)


@pytest.mark.usefixtures("counter")
def test_measurement_shows_its_time_and_load(monkeypatch):
    monkeypatch.setattr(profile, "occasion", lambda: {"measured_at": "2026-01-02T03:04:05+00:00", "load_average": 7.5})
    assert measured_profile().notes == ["measured 2026-01-02 03:04 at load 7.5"]


def test_the_bandwidth_is_left_out_on_request(counter):
    assert measured_profile(bandwidth=False).bytes_per_s is None
    assert counter.links == 0


def test_the_bandwidth_of_links_slowed_down_is_no_other_link_s(counter, monkeypatch):
    plain = measured_profile().bytes_per_s
    monkeypatch.setenv("PIPETRAIN_LINK_GIGABYTES_PER_S", "0.02")
    slowed = measured_profile().bytes_per_s
    monkeypatch.delenv("PIPETRAIN_LINK_GIGABYTES_PER_S")
    assert (plain, slowed, measured_profile().bytes_per_s) == (1e9, 2e9, 1e9)
    assert counter.links == 2


@pytest.mark.usefixtures("counter")
def test_a_profile_with_finegrained_stages_is_refused():
    assert_refused("partition=finegrained cuts layers apart", measured_profile, partition=FINEGRAINED)


@pytest.mark.usefixtures("counter")
def test_a_stored_profile_of_another_model_is_refused(tmp_path):
    found, stored = measured_profile(), tmp_path / "profile.json"
    other = replace(found, layers=(*found.layers[:2], replace(found.layers[2], label="gate"), *found.layers[3:]))
    shorter = replace(found, layers=found.layers[:5], edges=found.edges[:4])
    for wrong, message in (
        (other, f"layer 2 is gate, not {found.layers[2].label}"),
        (shorter, "it has 5 layers, not 7"),
    ):
        stored.write_text(json.dumps(wrong.to_json()))
        chosen = settings("gpipe", profile=str(stored), device="cpu")
        data, chain = profile.build_data(chosen), built(chosen)
        assert_refused(message, profile.profile_of_chain, chosen, data, chain)


def built(chosen):
    return profile.build_model(chosen, profile.build_data(chosen).dataset)


def test_switches_of_torch_are_measured_apart(counter):
    measured_profile()
    measured_profile(deterministic=True)
    measured_profile(train={"tf32": False})
    measured_profile(train={"tf32": True})
    measured_profile(deterministic=True)
    assert counter.layers == 4


def test_model_is_measured_on_a_device_in_a_process_that_ends(counter, monkeypatch):
    monkeypatch.setattr(profile, "device_of", lambda _: "fake")
    monkeypatch.setattr(profile, "device_at", lambda _kind, rank: torch.device("meta", rank))
    record = lambda measure, *given: apart.append(measure) or measure(*given)  # noqa: E731
    monkeypatch.setattr(profile, "measure_in_subprocess", record)
    apart = []
    found = measured_profile(bandwidth=False)
    assert (counter.layers, [measure.__name__ for measure in apart]) == (1, ["_measured_again"])
    assert measured_profile(bandwidth=False) == found
    assert counter.layers == 1


class Local(nn.Sequential):
    """As if defined in a notebook."""


Local.__module__ = "__main__"


@pytest.mark.usefixtures("counter")
def test_object_that_no_process_can_get_is_not_measured_on_a_device(monkeypatch):
    monkeypatch.setattr(profile, "device_of", lambda _: "fake")
    monkeypatch.setattr(profile, "device_at", lambda _kind, rank: torch.device("meta", rank))
    given = {"model": Local(nn.Flatten(), nn.Linear(64, 4))}
    with pytest.raises(ConfigError, match=r"Local: cannot be sent to worker processes: Local is defined in the main"):
        measured_profile(given=given, model={"_target_": "torch.nn.Identity"})


def test_objects_of_one_class_are_measured_apart(counter):
    for heads in (1, 4):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4 * heads), nn.Linear(4 * heads, 4))
        measured_profile(given={"model": model}, model={"_target_": "torch.nn.Identity"})
    assert counter.layers == 2


def pid_and(given):
    return [os.getpid(), given]


def refuse():
    raise ConfigError("train.batch_size=9: too many")


@pytest.mark.slow
def test_what_a_process_measured_comes_back_from_it():
    pid, given = profile.measure_in_subprocess(pid_and, {"a": 1.5})
    assert pid != os.getpid()
    assert given == {"a": 1.5}


def test_unmeasurable_configuration_is_refused_like_in_process(monkeypatch):
    monkeypatch.setattr(profile, "start_processes", lambda function, args, **_how: function(0, *args))
    assert_refused(r"^train\.batch_size=9: too many$", profile.measure_in_subprocess, refuse)


class Slow:
    """A loader whose inputs take a while, the first of them longer."""

    workers = 0

    def __len__(self):
        return 3

    def inputs(self, _epoch, first, last):
        for number in range(first, last):
            time.sleep(0.01 if number else 0.2)
            yield ()

    def targets(self, _epoch, first, last):
        return iter([()] * (last - first))


@pytest.mark.parametrize("repeats", [1, 9])
def test_inputs_and_targets_take_their_median_behind_the_first(repeats):
    found = measure_reading(Slow(), repeats)
    assert 0.01 <= found.inputs_s < 0.2
    assert 0 < found.targets_s < 0.01


def test_processes_that_read_ahead_take_the_stages_no_time():
    loader = Slow()
    loader.workers = 2
    assert measure_reading(loader, 1) == LoaderTime(0.0, 0.0)
