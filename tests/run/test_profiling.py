import json
from dataclasses import replace

import pytest
import torch
from support.worker_pool import settings

from pipetrain.errors import ConfigError
from pipetrain.planner.profile.profile import MessageCpuTime, ProfiledLayer
from pipetrain.run import profiling
from pipetrain.run.link_speed import LinkSpeed
from pipetrain.run.profiling import profile_of

FINEGRAINED = {"_target_": "pipetrain.planner.partition.finegrained.FineGrained", "stages": 5}


class Counter:
    """Stands for the measurements, whose numbers tell how often there were any."""

    def __init__(self):
        self.layers = self.links = 0

    def measured_layers(self, chain, _minibatch, _how, _tick):
        self.layers += 1
        return tuple(ProfiledLayer(label, float(self.layers), 0.0, 0, 0, 0) for label in chain.labels)

    def measured_link(self, _device):
        self.links += 1
        return LinkSpeed(1e9 * self.links, MessageCpuTime(1e-4, 1e-10))


@pytest.fixture
def counter(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    counter = Counter()
    monkeypatch.setattr(profiling, "measured_layers", counter.measured_layers)
    monkeypatch.setattr(profiling, "measured_link", counter.measured_link)
    return counter


def profile(cache="use", *, bandwidth=True, **changes):
    boundaries = {"_target_": "pipetrain.planner.partition.rules.Explicit", "boundaries": [3]}
    planner = {"cache": cache, "bandwidth": bandwidth}
    return profile_of(settings("gpipe", **{"planner": planner, "device": "cpu", "partition": boundaries, **changes}))


def test_a_profile_says_what_was_measured(counter):
    found = profile(train={"microbatches": 2}, threads=1)
    assert (len(found.layers), found.batch_size) == (7, 4)
    assert (found.bytes_per_s, found.message_work) == (1e9, MessageCpuTime(1e-4, 1e-10))
    assert found.is_chain
    assert found.provenance["inputs"] == ["4x1x8x8 float32"]
    assert (found.provenance["model"], found.provenance["microbatches"]) == ("small", 2)
    assert (counter.layers, counter.links) == (1, 1)


def test_what_was_measured_is_not_measured_again(counter):
    assert profile() == profile()
    profile(train={"batch_size": 8})
    assert (counter.layers, counter.links) == (2, 1)


@pytest.mark.usefixtures("counter")
def test_a_remembered_measurement_says_when_it_was_made_and_how_busy_the_machine_was(monkeypatch):
    monkeypatch.setattr(
        profiling, "occasion", lambda: {"measured_at": "2026-01-02T03:04:05+00:00", "load_average": 7.5}
    )
    assert profile().notes == ["measured 2026-01-02 03:04 at load 7.5"]
    monkeypatch.setattr(profiling, "occasion", lambda: {"measured_at": "2026-02-03T04:05:06+00:00"})
    assert profile().notes == ["measured 2026-01-02 03:04 at load 7.5; planner.cache=renew measures anew"]
    (other,) = profile(train={"batch_size": 8}).notes
    assert other == (
        "measured 2026-02-03 04:05, the link 2026-01-02 03:04 at load 7.5; planner.cache=renew measures anew"
    )
    assert profile("renew").notes == ["measured 2026-02-03 04:05"]


@pytest.mark.usefixtures("counter")
def test_renewing_measures_again_and_keeps_that():
    profile()
    renewed = profile(cache="renew")
    assert (renewed.layers[0].forward_s, renewed.bytes_per_s) == (2.0, 2e9)
    assert profile() == renewed


def test_ignoring_neither_reads_nor_writes(counter, tmp_path):
    profile(cache="ignore")
    assert not (tmp_path / "cache").exists()
    profile()
    profile(cache="ignore")
    assert (counter.layers, counter.links) == (3, 3)


@pytest.mark.usefixtures("counter")
def test_a_damaged_entry_is_measured_anew(tmp_path):
    profile()
    (entry,) = (tmp_path / "cache" / "pipetrain").glob("profile-*.json")
    content = json.loads(entry.read_text())
    del content["measured"]["layers"][0]["forward_s"]
    entry.write_text(json.dumps(content))
    assert profile().layers[0].forward_s == 2.0
    assert profile().layers[0].forward_s == 2.0


def test_the_bandwidth_is_left_out_on_request(counter):
    assert profile(bandwidth=False).bytes_per_s is None
    assert counter.links == 0


def test_the_bandwidth_of_links_slowed_down_is_no_other_link_s(counter, monkeypatch):
    plain = profile().bytes_per_s
    monkeypatch.setenv("PIPETRAIN_LINK_GIGABYTES_PER_S", "0.02")
    slowed = profile().bytes_per_s
    monkeypatch.delenv("PIPETRAIN_LINK_GIGABYTES_PER_S")
    assert (plain, slowed, profile().bytes_per_s) == (1e9, 2e9, 1e9)
    assert counter.links == 2


@pytest.mark.usefixtures("counter")
def test_a_profile_with_finegrained_stages_is_refused():
    with pytest.raises(ConfigError, match="partition=finegrained cuts layers apart"):
        profile(partition=FINEGRAINED)


@pytest.mark.usefixtures("counter")
def test_a_stored_profile_of_another_model_is_refused(tmp_path):
    found, stored = profile(), tmp_path / "profile.json"
    other = replace(found, layers=(*found.layers[:2], replace(found.layers[2], label="gate"), *found.layers[3:]))
    shorter = replace(found, layers=found.layers[:5], edges=found.edges[:4])
    for wrong, message in (
        (other, f"layer 2 is gate, not {found.layers[2].label}"),
        (shorter, "it has 5 layers, not 7"),
    ):
        stored.write_text(json.dumps(wrong.to_json()))
        chosen = settings("gpipe", profile=str(stored), device="cpu")
        data, chain = profiling.build_data(chosen), built(chosen)
        with pytest.raises(ConfigError, match=message):
            profiling.profile_of_chain(chosen, data, chain)


def built(chosen):
    return profiling.build_chain(chosen.model.target, profiling.build_data(chosen).dataset, chosen.seed)


def test_switches_of_torch_are_measured_apart(counter):
    profile()
    profile(deterministic=True)
    profile(train={"tf32": False})
    profile(train={"tf32": True})
    profile(deterministic=True)
    assert counter.layers == 4


def test_model_is_measured_on_a_device_in_a_process_that_ends(counter, monkeypatch):
    monkeypatch.setattr(profiling, "device_of", lambda _: "fake")
    monkeypatch.setattr(profiling, "device_at", lambda _kind, rank: torch.device("meta", rank))
    monkeypatch.setattr(profiling, "measured_apart", lambda measure, *given: apart.append(measure) or measure(*given))
    apart = []
    found = profile(bandwidth=False)
    assert (counter.layers, [measure.__name__ for measure in apart]) == (1, ["_measured_again"])
    assert profile(bandwidth=False) == found
    assert counter.layers == 1
