"""How formats of messages are chosen."""

import pytest
from omegaconf import OmegaConf
from support.methods import MethodCase
from support.worker_pool import CONFIG, settings

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.choices import all_names, section
from pipetrain.runner.config.composition import (
    Composition,
    combinations,
    composed,
    folder_name,
    settings_of,
    with_choices_of,
)
from pipetrain.runner.config.messages import have_formats, with_names, without_names
from pipetrain.runner.training.components.messages import build_messages


def chosen(*words):
    return composed(["partition.stages=2", *words]).stored["messages"]


def test_messages_are_plain_by_default():
    found = composed([])
    assert found.messages.targets == {}
    assert found.stored["messages"]["activations"] == {"name": "plain"}
    assert not have_formats(found.stored)


def test_a_name_chooses_a_format_and_options_change_it():
    for words in (
        ["messages.activations=int4", "messages.activations.rounding=stochastic"],
        ["messages.activations.rounding=stochastic", "messages.activations=int4"],
        ["messages.activations={name: int4, rounding: stochastic}"],
    ):
        found = composed(words)
        assert found.stored["messages"]["activations"] == {
            "name": "int4", "bits": 4, "group": 64, "rounding": "stochastic",
        }  # fmt: skip
        assert found.messages.targets["activations"].options["rounding"] == "stochastic"
        assert have_formats(found.stored)


def test_both_directions_are_chosen_apart():
    found = composed(["messages.activations=fp8", "messages.gradients=fp8"])
    built = build_messages(found, {})
    assert {direction: form.kind for direction, form in built.formats().items()} == {
        "activations": "e4m3", "gradients": "e5m2",
    }  # fmt: skip


def test_the_written_out_section_is_read_back_the_same():
    first = composed(["messages.activations=topk", "messages.gradients=custom", "messages.gradients._target_=a.b"])
    again = settings_of(OmegaConf.create(dict(first.stored)), first.choices)
    assert again.messages == first.messages
    assert again.stored == first.stored


def test_words_are_shown_as_they_were_given():
    words = ["messages.activations=int8", "messages.gradients=plain,topk", "model.name=x"]
    assert without_names(" ".join(with_names(words))) == " ".join(words)


def test_a_sweep_takes_names_and_its_folders_are_called_after_them():
    words = ["messages.activations=plain,int8", "seed=1"]
    members = list(combinations(words))
    assert [composed(member).stored["messages"]["activations"]["name"] for member in members] == ["plain", "int8"]
    assert folder_name(3, "messages.activations.name=int8 seed=1") == "3_activations=int8_seed=1"


def test_a_format_that_words_name_has_no_options_of_a_preset(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = (
        "# @package _global_\nmessages: {activations: {name: tah, tile: 32}, gradients: {name: topk, share: 0.2}}\n"
        "hydra: {sweeper: {params: {messages.activations: '{name:aq,bits:2}'}}}\n"
    )
    (tmp_path / "experiment" / "formats.yaml").write_text(text)

    def found(*words):
        return Composition.of(with_choices_of(tmp_path, ["experiment=formats", *words]))

    def activations(*words):
        composition = found(*words)
        stored = settings_of(composition.config, composition.choices).stored["messages"]
        assert (stored["gradients"]["name"], stored["gradients"]["share"]) == ("topk", 0.2)
        return stored["activations"]

    assert activations()["tile"] == 32
    assert activations("messages.activations.bits=6") == {**activations(), "bits": 6}
    assert activations("messages.activations=plain") == {"name": "plain"}
    int8 = {"name": "int8", "bits": 6, "group": 64, "rounding": "nearest"}
    assert activations("messages.activations=int8", "messages.activations.bits=6") == int8
    assert activations("messages.activations={name: int8, bits: 6}") == int8
    assert activations("messages={activations: {name: int8, bits: 6}}") == int8
    assert found().varied(["messages.activations.bits=6"]) == ["messages.activations={name:aq,bits:2}"]
    assert found().varied(["messages.activations=int8"]) == found().varied(["messages.activations={name: int8}"]) == []


@pytest.mark.parametrize("name", sorted(all_names("message") - {"plain", "custom"}))
def test_every_choice_builds_and_lists_its_options(name):
    found = settings("pipedream", messages={"activations": name})
    assert build_messages(found, {}).activations is not None
    target = found.messages.targets["activations"]
    assert {*target.options} == {*target.parameters()} == {*section("message", name)} - {"_target_"}


def test_a_users_own_format_is_a_class():
    own = {"name": "custom", "_target_": "pipetrain.zoo.messages.bf16.Bf16"}
    assert build_messages(settings("pipedream", messages={"gradients": own}), {}).gradients.parts == 1


REFUSED = {
    "messages.activations=int7": "messages.activations=int7: no such format; did you mean",
    "messages.activations._target_=mylib.Half": "name a format, such as messages.activations=custom",
    "messages.activations.bits=4": "messages.activations.bits=4: messages.activations=plain takes no options",
    "messages.activations=int8 messages.activations.bits=9": "messages.activations.bits=9: must be at most 8",
    "messages.activations=int8 messages.activations.bits=1": "messages.activations.bits=1: must be a whole number",
    "messages.activations=int8 messages.activations.group=0": "messages.activations.group=0: must be",
    "messages.activations=int8 messages.activations.rounding=up": "messages.activations.rounding=up: must be one of",
    "messages.gradients=topk messages.gradients.share=0": "messages.gradients.share=0: must be a number above 0",
    "messages.gradients=topk messages.gradients.shares=1": "messages.gradients.shares=1: .* did you mean",
    "messages.gradients=fp8 messages.gradients.scale=column": "messages.gradients.scale=column: must be one of",
    "messages.gradients=aq": "messages.gradients=aq: gradients do not settle",
    "messages.gradients=tah": "messages.gradients=tah: TAH-Quant is for activations",
    "messages.activations=tah messages.activations.tile=48": "messages.activations.tile=48: must be a power of two",
    "messages.activations=tah messages.activations.bits=2": "messages.activations.low_bits=3: must be at most bits=2",
    "messages.activations=aq messages.activations.folder=/nowhere": "messages.activations.folder=/nowhere: no such",
    "messages.activations=aq messages.activations.folder=3": "messages.activations.folder=3: no such folder",
    "messages.activations=aq messages.activations.gigabytes=0": "messages.activations.gigabytes=0: must be a number",
    "messages.activations=custom messages.activations._target_=torch.nn.ReLU": "returned ReLU, not a pip",
    "messages.error_every=0": "messages.error_every=0: must be a whole number of at least 1, or null for never",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_refused_by_its_setting(words):
    config = OmegaConf.create({**CONFIG, **MethodCase.named("pipedream").sections()})
    pairs = dict(word.split("=") for word in words.split())
    for direction in ("activations", "gradients"):
        if name := pairs.pop(f"messages.{direction}", None):
            pairs[f"messages.{direction}.name"] = name
    asked = OmegaConf.from_dotlist([f"{name}={value}" for name, value in pairs.items()])

    def build():
        found = settings_of(OmegaConf.merge(config, asked), {})
        found.check_targets()
        build_messages(found, {}).formats()

    with pytest.raises(ConfigError, match=REFUSED[words]):
        build()
