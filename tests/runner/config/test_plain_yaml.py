"""YAML that may be another's."""

import pytest
import yaml
from omegaconf import OmegaConf

from pipetrain.runner.config import plain_yaml


@pytest.mark.parametrize(
    "text",
    [
        "1e-3", "1.0e-05", "-1E5", "1_000e2", ".5", "1.", "-.inf", ".nan", "1e", "e5", "12", "0x1f", "1_000",
        "2026-01-02", "2026-01-02 03:04:05", "'1e-3'", "true", "off", "null", "~", "", "a text", "'${x}'",
    ],
)  # fmt: skip
def test_values_are_those_of_omegaconf(text):
    expected = OmegaConf.to_container(OmegaConf.create(f"a: [{text}]\nb: {{c: {text}}}"), resolve=False)
    assert repr(plain_yaml.load(f"a: [{text}]\nb: {{c: {text}}}")) == repr(expected)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &a [x, x]\nb: [*a, *a]", "it has YAML aliases; their content must be written out"),
        ("[" * 60 + "]" * 60, "it is nested too deeply"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_file_that_could_fill_memory_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        plain_yaml.load(text)


@pytest.mark.parametrize("text", ["a: [1", "a: !!python/object/apply:os.system [true]"])
def test_what_is_no_plain_yaml_is_an_error_of_the_parser(text):
    with pytest.raises(yaml.YAMLError):
        plain_yaml.load(text)
