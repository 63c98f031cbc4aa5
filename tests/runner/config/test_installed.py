"""Choices of installed packages are like pipetrain's own; those of a broken package are left out."""

import json

import pytest
from support.refusals import assert_refused

from pipetrain import cli
from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.choices import choice_of, names_of, names_of_family
from pipetrain.runner.config.composition import combinations, composed, with_choices_of
from pipetrain.runner.config.installed import ENTRY_POINTS, installed_folders
from pipetrain.runner.config.reference import settings_of_choice
from pipetrain.runner.config.schema import config_dir
from pipetrain.runner.tracking.stored_settings import check_targets

METHOD = "# Mine\ndefaults:\n  - override /schedule@_global_.schedule: 1f1b\n_target_: {}.Mine\npower: 2  # of it\n"
STASHING = """
from pipetrain.engine.methods.pipedream import PipeDream
class Mine(PipeDream):
    def __init__(self, power): pass
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on Python's path, in which nothing is installed yet."""
    monkeypatch.syspath_prepend(str(tmp_path))
    installed_folders.cache_clear()
    yield tmp_path
    installed_folders.cache_clear()


def install(site, package, files, folder="conf", code=""):
    """The folder of choices of a package whose module, of the same name, has this code; `site` is on Python's path."""
    home = site / package
    for name, text in files.items():
        path = home / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    home.mkdir(exist_ok=True, parents=True)
    (home / "__init__.py").write_text(code)
    info = site / f"{package}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{package} = {package}.{folder}\n")
    return home / "conf"


def warned(capsys):
    names_of("method")
    err = capsys.readouterr().err
    assert err.count("\n") == (err != "")
    return err


def test_installed_choice_is_composed_listed_and_described(site, capsys):
    folder = install(site, "own_a", {"method/mine.yaml": METHOD.format("own_a")}, code="raise RuntimeError('imported')")
    assert warned(capsys) == ""
    assert choice_of("method", "mine").package == "own_a"
    assert choice_of("method", "pipedream").package is None
    assert [(each.name, each.meaning) for each in settings_of_choice("method", "mine")] == [("method.power", "of it")]
    settings = composed(["method=mine", "method.power=3"])
    assert (settings.choices["method"], settings.stored["method"]) == ("mine", {"_target_": "own_a.Mine", "power": 3})
    assert [words for words in combinations(["method=glob(min*)"])] == [["method=mine"]]
    assert cli.carry_out(["list", "methods", "--json"]) == 0
    row = next(row for row in json.loads(capsys.readouterr().out) if row["name"] == "mine")
    assert row == {"name": "mine", "summary": "Mine", "package": "own_a"}
    assert cli.carry_out(["completion", "--line", "pipetrain run method=mi"]) == 0
    assert capsys.readouterr().out == "method=mine \n"
    assert list(installed_folders()) == [folder]


def test_installed_model_has_tuned_settings_and_needs_no_task(site):
    tuned = "lr: 0.25\n"
    files = {"model/net.yaml": "_target_: own_b.Net\n", "dataset/shapes.yaml": "_target_: own_b.Shapes\n"}
    install(site, "own_b", {**files, "tuned/net-sgdm.yaml": tuned})
    settings = composed(["model=net", "dataset=shapes"])
    assert settings.optimizer.lr == 0.25
    assert composed(["model=gpt", "dataset=shapes"]).choices["dataset"] == "shapes"
    assert_refused("the model is for language modeling", composed, ["model=gpt", "dataset=mnist"])
    assert cli.carry_out(["list", "models"]) == 0


def test_choice_in_config_dir_is_found_as_well(site, tmp_path_factory):
    install(site, "own_c", {"method/mine.yaml": METHOD.format("own_c")})
    other = tmp_path_factory.mktemp("mine")
    (other / "experiment").mkdir()
    (other / "experiment" / "preset.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /method: mine\nseed: 7\n"
    )
    settings = composed(["experiment=preset", f"hydra.searchpath=['file://{other}']"])
    assert (settings.choices["method"], settings.seed) == ("mine", 7)


def test_choice_in_config_dir_may_not_have_the_name_of_an_own_one(tmp_path):
    (tmp_path / "optimizer").mkdir()
    mine = tmp_path / "optimizer" / "sgdm.yaml"
    mine.write_bytes((config_dir() / "optimizer" / "sgdm.yaml").read_bytes())
    assert with_choices_of(tmp_path, ["seed=1"])[0] == "seed=1"  # a copy
    mine.write_text("_target_: torch.optim.SGD\nlr: 3.0\n")
    assert_refused(r"--config-dir .*: optimizer/sgdm\.yaml has the name", with_choices_of, tmp_path, ["seed=1"])


def test_target_of_stored_run_is_trusted_while_installed(site):
    config = {"method": {"_target_": "own_d.Mine"}}
    assert_refused(r"own_d\.Mine is not pipetrain's own code", check_targets, config, ["method"], [], "run")
    install(site, "own_d", {"method/mine.yaml": METHOD.format("own_d")})
    installed_folders.cache_clear()
    check_targets(config, ["method"], [], "run")
    with pytest.raises(ConfigError, match=r"own_d\.Other is not"):
        check_targets({"method": {"_target_": "own_d.Other"}}, ["method"], [], "run")


def test_names_of_a_family_leave_out_code_that_does_not_work(site):
    install(site, "own_e", {"method/works.yaml": METHOD.format("own_e")}, code=STASHING)
    install(site, "own_f", {"method/fails.yaml": METHOD.format("own_f")}, code="raise RuntimeError")
    assert {"works", "fails"} <= set(names_of("method"))
    found = names_of_family("method", "continuous")
    assert "works" in found
    assert "fails" not in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "folder", "reason"),
    [
        ({}, "conf", "its entry point names broken.conf, which is not a folder of an installed package"),
        ({"method/mine.yaml": "_target_: ["}, "conf", "while parsing a flow node"),
        ({"method/mine.yaml": "- a list"}, "conf", "has no settings"),
        (
            {"method/mine.yaml": "a: &a [x]\nb: [*a, *a]"},
            "conf",
            "it has YAML aliases; their content must be written out",
        ),
        ({"methods/mine.yaml": "a: 1"}, "conf", "there is no group methods"),
        ({"method/pipedream.yaml": "a: 1"}, "conf", "method/pipedream.yaml is in pipetrain already"),
        ({"config.yaml": "a: 1"}, "conf", "config.yaml is in pipetrain already"),
        ({"method/mine.yaml": "a: 1"}, "elsewhere", "its entry point names broken.elsewhere, which is not a folder"),
    ],
)
def test_broken_package_is_left_out_with_one_warning(site, capsys, files, folder, reason):
    install(site, "broken", files, folder)
    install(site, "own_g", {"method/other.yaml": METHOD.format("own_g")})
    err = warned(capsys)
    assert err.startswith("pipetrain: warning: the choices of broken are not used: ")
    assert reason in err
    assert warned(capsys) == "", "only once"
    assert "mine" not in names_of("method")
    assert composed(["method=other"]).choices["method"] == "other"
    assert composed(["method=pipedream"]).stored["method"]["_target_"] == "pipetrain.engine.methods.pipedream.PipeDream"


def test_second_package_with_the_same_choice_is_left_out(site, capsys):
    for package in ("own_h", "own_i"):
        install(site, package, {"method/mine.yaml": METHOD.format(package)})
    assert "the choices of own_i are not used: method/mine.yaml is in own_h already; rename the file in " in warned(
        capsys
    )
    assert composed(["method=mine"]).stored["method"]["_target_"] == "own_h.Mine"


def test_only_the_first_process_of_a_launcher_warns(site, capsys, monkeypatch):
    install(site, "broken", {"method/mine.yaml": "- a list"})
    monkeypatch.setenv("RANK", "1")
    assert warned(capsys) == ""
