"""What `pipetrain doctor` says of a machine."""

import json
import tempfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipetrain import cli
from pipetrain.commands import doctor
from pipetrain.zoo import torchvision_shim


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def found(capsys, code=0):
    assert cli.carry_out(["doctor", "--json"]) == code
    return {each["name"]: (each["state"], each["text"]) for each in json.loads(capsys.readouterr().out)}


def test_doctor_lists_versions_devices_memory_and_disk(capsys):
    assert cli.carry_out(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok  torch ") and torch.__version__ in line for line in lines)
    assert [line.split()[1] for line in lines] == list(found(capsys))
    assert {"pipetrain", "gloo", "cores", "memory", "disk"} <= set(found(capsys))


def test_machine_without_a_gpu_lacks_nothing(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: False)
    states = found(capsys)
    assert (states["cuda"][0], states["nccl"][0]) == ("absent", "absent")


def test_gpus_are_listed_with_the_pairs_that_lack_peer_access(capsys, monkeypatch):
    device = SimpleNamespace(
        name="Some GPU", uuid="1", total_memory=8e9, multi_processor_count=10, major=9, minor=0, pci_bus_id=0
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: device)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda i, _: i == 0)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    findings = found(capsys)
    assert findings["cuda:1"] == ("ok", "Some GPU, 8.0 GB, 10 SMs, capability 9.0")
    assert findings["peer access"] == ("limited", "not from 1-0: messages go through host memory")
    assert "CUDA_VISIBLE_DEVICES=3,5" in findings["environment"][1]
    assert "2.28.9" in findings["nccl"][1]


def test_machine_without_gloo_cannot_run_processes(capsys, monkeypatch):
    monkeypatch.setattr("torch.distributed.is_gloo_available", lambda: False)
    assert found(capsys, code=1)["gloo"] == ("missing", "executor=distributed cannot run; executor=simulated can")


@pytest.mark.parametrize(("version", "told"), [("0.28.0+cu130", True), ("0.28.0+cpu", False), ("0.28.0", False)])
def test_torchvision_of_another_build_than_torch_is_told(capsys, monkeypatch, version, told):
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    monkeypatch.setattr(torchvision_shim, "torchvision", SimpleNamespace(__version__=version))
    assert ("built for another torch" in found(capsys)["torchvision"][1]) is told


def test_folder_that_cannot_be_written_to_is_missing(capsys, monkeypatch):
    def full(**_where):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    state, text = found(capsys, code=1)["disk"]
    assert state == "missing"
    assert f"no file can be written to {Path.cwd()}: Read-only file system" in text


def test_disk_with_little_room_is_limited(capsys, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=5e8))
    assert found(capsys)["disk"][0] == "limited"


def test_optional_packages_are_listed_and_missing_ones_fail(capsys, monkeypatch):
    def version_of(name):
        if name in ("h5py", "safetensors"):
            raise PackageNotFoundError(name)
        return "1.2.3"

    monkeypatch.setattr(doctor, "version_of", version_of)
    findings = found(capsys, code=1)
    assert findings["h5py"] == ("absent", "for features of videos in HDF5 files: docs/language-models.md")
    assert findings["hydra-optuna-sweeper"] == ("ok", "1.2.3: searches over settings: hydra/sweeper=optuna")
    assert findings["safetensors"] == ("missing", "pip install safetensors: pipetrain needs it")
