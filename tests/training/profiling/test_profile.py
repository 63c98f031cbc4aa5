"""How long data is read."""

import json
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.small_model import build
from support.worker_pool import settings
from torch import nn

from pipetrain.config.given_objects import with_objects
from pipetrain.errors import ConfigError
from pipetrain.losses import CrossEntropy
from pipetrain.models.conversion import chain_of
from pipetrain.planner.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.planner.profile.profile import LoaderTime, MessageCpuTime, ProfiledLayer, ProfiledWeight
from pipetrain.training.builders.data import build_data
from pipetrain.training.profiling import profile
from pipetrain.training.profiling.layer_times import MeasuredModel, Measuring
from pipetrain.training.profiling.link_speed import LinkSpeed
from pipetrain.training.profiling.profile import measure_reading, profile_key, profile_of

FROM_FILE = "pipetrain.planner.partition.from_file.PartitionFromPlan"
FINEGRAINED = {"_target_": "pipetrain.planner.partition.finegrained.FineGrained", "stages": 5}


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
def counter(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    counter = Counter()
    monkeypatch.setattr(profile, "measured_model", counter.measured_model)
    monkeypatch.setattr(profile, "measured_link", counter.measured_link)
    return counter


def measured_profile(cache="use", *, bandwidth=True, given=(), **changes):
    boundaries = {"_target_": "pipetrain.planner.partition.rules.Explicit", "boundaries": [3]}
    planner = {"cache": cache, "bandwidth": bandwidth}
    chosen = settings("gpipe", **{"planner": planner, "device": "cpu", "partition": boundaries, **changes})
    return profile_of(with_objects(chosen, dict(given)))


@pytest.mark.parametrize(
    ("options", "threads"),
    [({}, 4), ({"replicas": [2, 2]}, 2), ({"_target_": FROM_FILE, "path": "plan.json"}, 2)],
)
def test_profile_has_the_threads_of_the_processes(tmp_path, monkeypatch, options, threads):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profile, "usable_cores", lambda: 8)
    stages = tuple(PlannedStage((number,), replicas, 0.1, 1) for number, replicas in enumerate((3, 1)))
    (tmp_path / "plan.json").write_text(json.dumps(PipelinePlan(stages, 0.1, 0.2, 0.1, ("a", "b")).to_json()))
    explicit = {"_target_": "pipetrain.planner.partition.rules.Explicit", "boundaries": [3]}
    chosen = settings("pipedream", device="cpu", partition=options if "path" in options else {**explicit, **options})
    assert profile._measuring(chosen, build_data(chosen)).threads == threads


def test_profile_has_the_threads_of_processes_with_several_stages(monkeypatch):
    monkeypatch.setattr(profile, "usable_cores", lambda: 8)
    even = {"_target_": "pipetrain.planner.partition.rules.Even", "stages": 4}
    interleaved = {"_target_": "pipetrain.schedules.torch_library.Interleaved1F1B"}
    for microbatches, threads in ((2, 4), (5, 2)):  # a run refuses five
        train = {"batch_size": 10, "microbatches": microbatches}
        chosen = settings("gpipe", device="cpu", partition=even, schedule=interleaved, train=train)
        assert profile._measuring(chosen, build_data(chosen)).threads == threads


def test_a_profile_says_what_was_measured(counter):
    found = measured_profile(train={"microbatches": 2}, threads=1)
    assert (len(found.layers), found.batch_size) == (7, 4)
    assert (found.bytes_per_s, found.message_work) == (1e9, MessageCpuTime(1e-4, 1e-10))
    assert found.update_bytes_per_s == 5e9
    assert found.is_chain
    assert found.provenance["inputs"] == ["4x1x8x8 float32"]
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


def test_what_was_measured_is_not_measured_again(counter):
    assert measured_profile() == measured_profile()
    measured_profile(train={"batch_size": 8})
    assert (counter.layers, counter.links) == (2, 1)


@pytest.mark.usefixtures("counter")
def test_remembered_measurement_shows_its_age_and_load(monkeypatch):
    monkeypatch.setattr(profile, "occasion", lambda: {"measured_at": "2026-01-02T03:04:05+00:00", "load_average": 7.5})
    assert measured_profile().notes == ["measured 2026-01-02 03:04 at load 7.5"]
    monkeypatch.setattr(profile, "occasion", lambda: {"measured_at": "2026-02-03T04:05:06+00:00"})
    assert measured_profile().notes == ["measured 2026-01-02 03:04 at load 7.5; planner.cache=renew measures again"]
    (other,) = measured_profile(train={"batch_size": 8}).notes
    assert other == (
        "measured 2026-02-03 04:05, the link 2026-01-02 03:04 at load 7.5; planner.cache=renew measures again"
    )
    assert measured_profile("renew").notes == ["measured 2026-02-03 04:05"]


@pytest.mark.usefixtures("counter")
def test_a_damaged_entry_is_measured_anew(tmp_path):
    measured_profile()
    (entry,) = (tmp_path / "cache" / "pipetrain").glob("profile-*.json")
    content = json.loads(entry.read_text())
    del content["measured"]["layers"][0]["forward_s"]
    entry.write_text(json.dumps(content))
    assert measured_profile().layers[0].forward_s == 2.0
    assert measured_profile().layers[0].forward_s == 2.0


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
    with pytest.raises(ConfigError, match="partition=finegrained cuts layers apart"):
        measured_profile(partition=FINEGRAINED)


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
        with pytest.raises(ConfigError, match=message):
            profile.profile_of_chain(chosen, data, chain)


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


def test_reading_of_given_data_is_measured_again(counter, monkeypatch):
    times = iter((1.0, 2.0))
    monkeypatch.setattr(profile, "measure_reading", lambda *_: LoaderTime(next(times), 0.0))
    given = {"dataset": SimpleNamespace(**vars(build_data(settings("gpipe")).dataset))}
    found = [measured_profile(given=given, dataset={"_target_": "types.SimpleNamespace"}) for _ in range(2)]
    assert [each.reading.inputs_s for each in found] == [1.0, 2.0]
    assert counter.layers == 1


class Local(nn.Sequential):
    """As if defined in a notebook."""


Local.__module__ = "__main__"


@pytest.mark.usefixtures("counter")
def test_object_that_no_process_can_get_is_not_measured_on_a_device(monkeypatch):
    monkeypatch.setattr(profile, "device_of", lambda _: "fake")
    monkeypatch.setattr(profile, "device_at", lambda _kind, rank: torch.device("meta", rank))
    given = {"model": Local(nn.Flatten(), nn.Linear(64, 4))}
    with pytest.raises(ConfigError, match=r"Local is defined in the main .* unless partition=auto measures on a GPU"):
        measured_profile(given=given, model={"_target_": "torch.nn.Identity"})


MINIBATCH = ((torch.zeros(4, 1, 8, 8),), (torch.zeros(4, dtype=torch.long),))


def key(minibatch=MINIBATCH, channels=1, how=None, **changes):
    how = how or Measuring(CrossEntropy())
    return profile_key(settings("gpipe", **changes), build(channels, 4), minibatch, how)


@pytest.mark.parametrize(
    "other",
    [
        lambda: key(channels=2),
        lambda: key(((torch.zeros(8, 1, 8, 8),), MINIBATCH[1])),
        lambda: key(how=Measuring(CrossEntropy(), threads=2)),
        lambda: key(how=Measuring(CrossEntropy(), num_microbatches=2)),
        lambda: key(model={"untie": True}),
        lambda: key(loss={"_target_": "pipetrain.losses.TokenCrossEntropy"}),
        lambda: key(dataset={"classes": 5}),
        lambda: key(dataset={"workers": 1}),
    ],
    ids=["layers", "input shape", "threads", "microbatches", "model options", "loss", "data set", "readers"],
)
def test_a_profile_depends_on(other):
    assert other() != key()


def test_profile_is_independent_of_run_length_and_method():
    assert key(train={"epochs": 9}, seed=7) == key()


def test_a_profile_depends_on_the_code_of_the_model(monkeypatch, tmp_path):
    before, code = key(), tmp_path / "small_model.py"
    code.write_text("changed = True")
    monkeypatch.setattr(sys.modules["support.small_model"], "__file__", str(code))
    assert key() != before


def key_of_object(model):
    chosen = with_objects(settings("gpipe"), {"model": model})
    return profile_key(chosen, chain_of(model), MINIBATCH, Measuring(CrossEntropy()))


def attention(heads):
    return nn.TransformerEncoderLayer(8, heads, 8, batch_first=True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: nn.Conv2d(1, 4, 3, stride=1), lambda: nn.Conv2d(1, 4, 3, stride=2)),
        (lambda: attention(1), lambda: attention(4)),  # which its repr does not show
        (nn.ReLU, nn.Sigmoid),
        (lambda: nn.Linear(2, 2), lambda: nn.Linear(2, 2).requires_grad_(requires_grad=False)),
    ],
    ids=["stride", "heads", "class", "frozen"],
)
def test_profiles_of_objects_of_one_class_are_apart(one, other):
    def model(part):
        return nn.Sequential(nn.Conv2d(1, 1, 1), part)

    assert key_of_object(model(one())) == key_of_object(model(one()))
    assert key_of_object(model(one())) != key_of_object(model(other()))


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
