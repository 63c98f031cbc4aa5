"""The weights of a run as a file."""

import errno
import os

import pytest
import torch
from safetensors.torch import load_file
from support import small_model
from support.refusals import assert_refused
from support.worker_pool import job, simulated

from pipetrain import cli
from pipetrain.engine.errors import ConfigError, ExitCode
from pipetrain.runner.terminal.output_folder import check_new_file
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.store import Selection
from pipetrain.runner.training.finished.export import export, format_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = job(tmp_path_factory.mktemp("run"), "pipedream", 2)
    simulated(made)
    return made.run.path


def exported(run, path, *, force=False):
    check_new_file(f"-o {path}", path, "weights.pt", force=force)
    return export(Selection(run), path, format_of(path))


@pytest.mark.parametrize(
    ("name", "load", "loader"),
    [
        ("w.pt", torch.load, "torch.load"),
        ("w.bin", torch.load, "torch.load"),
        ("w.safetensors", load_file, "safetensors"),
    ],
)
def test_exported_weights_load_into_the_users_own_module(run, tmp_path, name, load, loader):
    said = exported(run, tmp_path / name)
    state = load(tmp_path / name)
    small_model.build(1, 4).module.load_state_dict(state)
    expected = contents.model_state(store.newest_undamaged(str(run)))
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    assert said.startswith(f"{tmp_path / name}: {len(state)} tensors, ")
    assert f" values, for {loader}, from " in said


def test_format_may_be_other_than_the_name_says(run, tmp_path):
    export(Selection(run), tmp_path / "w.bin", "safetensors")
    assert load_file(tmp_path / "w.bin")


def test_export_calls_nothing_that_the_run_names(run, tmp_path):
    (run / "config.yaml").write_text("model: {_target_: os.abort}")
    exported(run, tmp_path / "w.pt")
    (run / "config.yaml").unlink()


def test_file_that_exists_is_replaced_only_by_force(run, tmp_path):
    (tmp_path / "w.pt").write_bytes(b"mine")
    assert_refused(f"-o {tmp_path}/w.pt: exists; --force replaces it", exported, run, tmp_path / "w.pt")
    assert (tmp_path / "w.pt").read_bytes() == b"mine"
    exported(run, tmp_path / "w.pt", force=True)
    assert torch.load(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no/w.pt", "the folder {folder}/no does not exist"),
        (".", "is a folder; name a file in it"),
        ("pipe", "is not a regular file"),
    ],
)
def test_place_where_no_file_can_be_is_refused(run, tmp_path, path, reason):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError) as caught:
        exported(run, tmp_path / path, force=True)
    assert str(caught.value).startswith(f"-o {tmp_path / path}: {reason.format(folder=tmp_path)}")


@pytest.mark.parametrize("name", ["w.h5", "w.npz", "w.json"])
def test_name_of_other_format_is_refused_unless_chosen(tmp_path, name):
    assert_refused(r"-o \S+: no format for \.\w+; use \.safetensors, or for torch", format_of, tmp_path / name)
    assert cli.carry_out(["export", str(tmp_path), "-o", str(tmp_path / name)]) == ExitCode.WRONG_USAGE


def test_unwritable_folder_is_refused_as_wrong_usage(run, tmp_path, monkeypatch, capsys):
    def refuse(**_options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert cli.carry_out(["export", str(run), "-o", str(tmp_path / "w.pt")]) == ExitCode.WRONG_USAGE
    path = tmp_path / "w.pt"
    assert capsys.readouterr().err == (
        f"pipetrain: error: -o {path}: no file can be written to {tmp_path}: Permission denied\n"
    )


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_full_disk_names_file_and_keeps_previous_export(run, tmp_path, monkeypatch, name):
    path = tmp_path / name
    path.write_bytes(b"before")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        exported(run, path, force=True)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == [name]
