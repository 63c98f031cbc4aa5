"""`pipetrain plan` where messages have a format, on a profile from a file and a slow link."""

import json
from itertools import accumulate, pairwise

import pytest

from pipetrain import cli
from pipetrain.planning.profile.profile import Profile, ProfiledLayer
from pipetrain.planning.profiling import message_costs
from pipetrain.planning.tables import prediction_figure

SIZES = (4000, 4000, 80_000, 4000, 4000, 0)
"""Of what layers send: most where the layers are in two equal halves."""
LAYERS = tuple(ProfiledLayer(f"layer{i}", 0.001, 0.002, size, 8000, 16000) for i, size in enumerate(SIZES))
PROFILE = Profile(LAYERS, tuple(pairwise(range(6))), batch_size=10)
SLOW = ["topology.gigabytes_per_s=[0.01]", "topology.update_gigabytes_per_s=1e9", "train.batch_size=10"]
INT8 = ["messages.activations=int8", "messages.gradients=int8"]
BYTES, ENCODING_S, DECODING_S = 0.25, 0.0001, 0.0002


@pytest.fixture(autouse=True)
def _times_are_given(monkeypatch):
    monkeypatch.setattr(message_costs, "_measured", {})
    monkeypatch.setattr(message_costs, "_measure", lambda *_: (BYTES, ENCODING_S, DECODING_S))
    monkeypatch.setattr(prediction_figure, "draw", lambda _path, _every: None)


@pytest.fixture
def planned(tmp_path):
    """The content of plan.json for settings."""
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE.to_json()))

    def plan(*words):
        into = "-o", str(folder := tmp_path / "out"), "--force"
        assert cli.carry_out(["plan", f"profile={tmp_path / 'profile.json'}", *SLOW, *words, *into]) == 0
        return json.loads((folder / "plan.json").read_text())

    return plan


def cuts(plan):
    return [stage["layers"][0] for stage in plan["stages"][1:]]


STRAIGHT = ["topology.devices=2", "planner.straight=true"]


def test_format_makes_a_cut_the_best_one_that_plain_messages_do_not(planned):
    words = ["method=pipemare", "optimizer=sgd"]
    plain, small = planned(*words, *STRAIGHT), planned(*words, *STRAIGHT, *INT8)
    assert (cuts(plain), cuts(small)) == ([2], [3])
    assert plain["time_per_minibatch_s"] == pytest.approx(4 * 0.003)
    assert small["time_per_minibatch_s"] == pytest.approx(3 * 0.003 + ENCODING_S + DECODING_S)
    # where stages hide the messages, the search and the prediction say the same
    (given,) = planned(*words, "partition=explicit", "partition.boundaries=[3]", *INT8)["pipelines"]
    found = small["pipelines"][-1]
    assert (found["plan"], found["sent_bytes"]) == ("best", given["sent_bytes"])
    assert found["sent_bytes"] == 2 * BYTES * 80_000
    assert found["time_per_minibatch_s"] == pytest.approx(given["time_per_minibatch_s"])
    assert cuts(planned(*words, "partition=auto", "partition.stages=2", *INT8)) == [3]


def test_time_of_encoding_makes_a_cut_the_best_one(planned, monkeypatch):
    monkeypatch.setattr(message_costs, "_measure", lambda _, __, tensor: (BYTES, 2e-6 * tensor.shape[1], 0.0))
    assert cuts(planned("method=pipemare", *STRAIGHT, *INT8)) == [2]


@pytest.mark.parametrize(
    "words",
    [
        "method=pipedream topology.devices=2 planner.straight=true",
        "method=gpipe topology.devices=3 planner.straight=true train.microbatches=2",
        "method=gpipe topology.devices=2 train.microbatches=2 schedule=interleaved_1f1b",
        "method=pipedream topology.devices=3 partition.replicas=[2,1]",
    ],
)
def test_prediction_of_found_stages_is_that_of_the_same_stages_given(planned, words):
    formats = [INT8, INT8[1:]]
    found = planned(*words.split(), "messages.activations=int8,plain", "messages.gradients=int8")["pipelines"]
    assert found[0]["sent_bytes"] < found[1]["sent_bytes"]
    for case, chosen in zip(found, formats, strict=True):
        numbers, replicas = ([stage[name] for stage in case["stages"]] for name in ("num_layers", "replicas"))
        stages = ["partition=explicit", f"partition.boundaries={[*accumulate(numbers[:-1])]}"]
        stages += [f"partition.replicas={replicas}"] if max(replicas) > 1 else []
        (given,) = planned(*words.split(), *stages, *chosen)["pipelines"]
        assert given == {name: value for name, value in case.items() if name in given}


def test_formats_of_a_table_have_the_names_of_the_command_line(planned, capsys):
    planned("method=pipedream", "partition.stages=2", "messages.gradients=int8,aq,bf16")
    output = capsys.readouterr().out
    assert "messages.gradients  ms per minibatch" in output
    assert "left out: messages.gradients=aq: " in output
