"""Profiles and their files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.refusals import assert_refused

from pipetrain.engine.errors import ConfigError
from pipetrain.planning.profile.profile import (
    NO_MESSAGE_WORK,
    LoaderTime,
    MessageCpuTime,
    Profile,
    ProfiledLayer,
    ProfiledWeight,
    topological_order,
)
from pipetrain.planning.profile.profile_file import read_profile
from pipetrain.runner.partition.shared_weight import SharedWeight


def test_an_order_that_fits_already_is_kept():
    assert topological_order("abcd", [(0, 1), (0, 2), (1, 3), (2, 3)]) == [0, 1, 2, 3]


def test_the_smallest_index_comes_first_of_those_that_can():
    assert topological_order("abcd", [(3, 0), (1, 0), (2, 1)]) == [2, 1, 3, 0]


def test_a_cycle_is_told_by_its_layers():
    assert_refused(r"a cycle of layers: (b -> c -> b|c -> b -> c)$", topological_order, "abc", [(0, 1), (1, 2), (2, 1)])


PUBLISHED = Path(__file__).parents[4] / "shared" / "profiles"
LAYERS = tuple(ProfiledLayer(label, 0.25, 0.5, 64, 16, 128) for label in ("conv", "relu", "fc"))
CHAIN = Profile(LAYERS, ((0, 1), (1, 2)), 32, 1e9, {"device": "cpu"})
GRAPH = """\
node9 -- ReLU(inplace) -- forward_compute_time=0.250, backward_compute_time=0.500, activation_size=64.0, parameter_size=0.000
node1 -- Input -- forward_compute_time=21.700, backward_compute_time=0.000, activation_size=137319936.000, parameter_size=0.000
node10 -- Add(inplace) -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=64.0, parameter_size=0.000
node2 -- Conv2d(3, 32) -- forward_compute_time=1.130, backward_compute_time=1.760, activation_size=64.0, parameter_size=3456.000
\tnode1 -- node2
\tnode9 -- node10
\tnode2 -- node9
\tnode2 -- node10
"""  # noqa: E501


def written(folder, content):
    path = folder / "profile"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def changed(**changes):
    return {**CHAIN.to_json(), **changes}


def test_a_written_profile_is_read_back_as_it_was(tmp_path):
    assert read_profile(written(tmp_path, CHAIN.to_json())) == CHAIN
    assert CHAIN.is_chain


def test_weights_are_stored_and_the_state_of_an_optimizer_is_not(tmp_path):
    named = replace(LAYERS[0], weights=(ProfiledWeight("conv.weight", (2, 2), 4),))
    profile = replace(CHAIN, layers=(named, replace(LAYERS[1], weights=()), LAYERS[2]))
    shared = (SharedWeight((0, 2), 16),)
    counted = replace(
        profile,
        layers=tuple(replace(layer, state_bytes=9) for layer in profile.layers),
        shared_weights=(replace(shared[0], state_bytes=9),),
    )
    assert read_profile(written(tmp_path, counted.to_json())) == replace(profile, shared_weights=shared)
    assert "state_bytes" not in json.dumps(counted.to_json())


def test_published_graph_becomes_layers_in_computation_order(tmp_path):
    profile = read_profile(written(tmp_path, GRAPH))
    assert [layer.label for layer in profile.layers] == ["Conv2d(3, 32)", "ReLU(inplace)", "Add(inplace)"]
    assert profile.layers[0] == ProfiledLayer("Conv2d(3, 32)", 1.13e-3, 1.76e-3, 64, 3456, 64)
    assert profile.edges == ((0, 1), (0, 2), (1, 2))
    assert not profile.is_chain
    assert (profile.batch_size, profile.bytes_per_s) == (None, None)


def test_shared_weight_counts_once_wherever_its_layers_are(tmp_path):
    shared = [{"layers": [2, 0], "weight_bytes": 12}]
    profile = read_profile(written(tmp_path, changed(shared_weights=shared, edges=[[2, 0], [0, 1]])))
    assert [layer.label for layer in profile.layers] == ["fc", "conv", "relu"]
    assert profile.shared_weights == (SharedWeight((0, 1), 12),)
    assert [profile.weight_bytes_of(each) for each in ((0,), (0, 1), (1, 2))] == [16, 20, 32]
    assert profile.weight_bytes == 3 * 16 - 12
    assert read_profile(written(tmp_path, profile.to_json())) == profile


def test_data_reading_time_is_stored_and_one_device_reads_samples_once(tmp_path):
    read_one = read_profile(written(tmp_path, changed(reading={"inputs_s": 0.5, "targets_s": 0.25})))
    assert read_one.reading == LoaderTime(0.5, 0.25)
    assert read_one.single_device_s == 3 * 0.75 + 0.5


def test_work_on_messages_is_read_back(tmp_path):
    stored = changed(message_work={"seconds": 1e-4, "seconds_per_byte": 4e-10})
    assert read_profile(written(tmp_path, stored)).message_work == MessageCpuTime(1e-4, 4e-10)
    assert read_profile(written(tmp_path, changed())).message_work == NO_MESSAGE_WORK


def test_layers_that_stand_in_another_order_are_sorted(tmp_path):
    profile = read_profile(written(tmp_path, changed(edges=[[2, 0], [0, 1]])))
    assert [layer.label for layer in profile.layers] == ["fc", "conv", "relu"]
    assert profile.edges == ((0, 1), (1, 2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(layers=[]), "it has no layers$"),
        ("", "it has no layers$"),
        ({"stages": []}, "no profile: it has no layers"),
        ("[1, 2]", "no profile: it has no layers"),
        ('{\n"layers": [', "line 2: no JSON"),
        (changed(layers=[{"forward_s": 1.0}]), "layers.0.label=None: "),
        (changed(layers=[{"label": "conv"}]), "layers.0.forward_s=None: must be a number of at least 0"),
        (
            changed(layers=[{**CHAIN.to_json()["layers"][0], "weight_bytes": 1.5}]),
            "layers.0.weight_bytes=1.5: .*at least 0",
        ),
        (
            changed(layers=[{**CHAIN.to_json()["layers"][0], "weights": [{"name": "w", "shape": 3}]}]),
            "layers.0.weights.0.shape=3: must be a list",
        ),
        (changed(reading={"inputs_s": 1.0}), "reading.targets_s=None: .*at least 0"),
        (changed(reading={"inputs_s": -1, "targets_s": 0}), "reading.inputs_s=-1: .*at least 0"),
        (changed(message_work=1e-4), "message_work=0.0001: "),
        (changed(shared_weights=3), "shared_weights=3: must be a list"),
        (changed(shared_weights=[{"layers": [1, 1]}]), "shared_weights.0.weight_bytes=None: "),
        (
            changed(shared_weights=[{"layers": [1, 1], "weight_bytes": 1}]),
            r"has layers=\[1, 1\]: must be two or more of the 3 layers",
        ),
        (
            changed(shared_weights=[{"layers": [0, 3], "weight_bytes": 1}]),
            r"has layers=\[0, 3\]: must be two or more of the 3 layers",
        ),
        (
            changed(shared_weights=[{"layers": [0, 2], "weight_bytes": 17}]),
            r"that layers \[0, 2\] share has weight_bytes=17: .*at most 16",
        ),
        (changed(edges=[[0, 3]]), r"edge \[0, 3\]: must be two indices of its 3 layers"),
        (changed(edges=[[0, 1], [1, 0]]), "a cycle of layers: (conv -> relu -> conv|relu -> conv -> relu)$"),
        (changed(batch_size=0), r"batch_size=0: .*at least 1"),
        (changed(bytes_per_s=-1), "bytes_per_s=-1: must be a number"),
        (changed(bytes_per_s=0), "bytes_per_s=0: must be a number above 0"),
        (changed(update_bytes_per_s=0), "update_bytes_per_s=0: must be a number above 0"),
        ({"layers": 3}, "no profile: it has no layers"),
        ("node1 -- ReLU\n", "line 1: 'node1 -- ReLU' is neither a layer nor an edge"),
    ],
)
def test_a_wrong_profile_is_refused_in_one_line_with_its_path(tmp_path, content, message):
    with pytest.raises(ConfigError, match=message) as error:
        read_profile(written(tmp_path, content))
    assert str(error.value).startswith(f"profile={tmp_path / 'profile'}: ")
    assert "\n" not in str(error.value)


def test_a_missing_profile_is_named(tmp_path):
    assert_refused(r"profile=.*none\.json: cannot be read", read_profile, tmp_path / "none.json")


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published profiles are not here")
@pytest.mark.parametrize(
    ("model", "layers", "edges", "single_device_s", "weight_bytes"),
    [
        ("vgg16", 40, 40, 0.672535, 553430176),
        ("resnet18", 70, 78, 0.259742, 46758048),
        ("resnet50", 176, 192, 0.443419, 102228128),
        ("inception_v3", 325, 361, 0.689038, 108645056),
        ("gnmt", 37, 46, 0.089416, 775063808),
    ],
)
def test_published_profiles_have_the_sums_of_their_description(model, layers, edges, single_device_s, weight_bytes):
    profile = read_profile(PUBLISHED / model / "graph.txt")
    assert (len(profile.layers), len(profile.edges)) == (layers, edges)
    assert sum(layer.compute_s for layer in profile.layers) == pytest.approx(single_device_s, rel=1e-9)
    assert sum(layer.weight_bytes for layer in profile.layers) == weight_bytes
    assert all(a < b for a, b in profile.edges)


@pytest.mark.parametrize("provenance", [{}, {"measured_at": 3}, {"measured_at": None, "load_average": 1}])
def test_profile_without_measurement_time_has_no_note(provenance):
    assert replace(CHAIN, provenance=provenance).notes == []


@pytest.mark.parametrize(
    ("provenance", "cores"),
    [
        ({"device": "cpu", "cores": 4}, 4),
        ({"device": "cuda", "cores": 4}, None),
        ({"device": "cpu", "cores": "4"}, None),
    ],
)
def test_cores_are_those_of_a_measured_cpu(provenance, cores):
    assert replace(CHAIN, provenance=provenance).cores == cores
