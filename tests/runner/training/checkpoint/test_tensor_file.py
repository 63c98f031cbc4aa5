"""Files of tensors: what goes in comes out, and a disk that is full is an error of the system."""

import errno
import resource
import signal

import pytest
import torch
from support.refusals import assert_refused

from pipetrain.engine.stage.saved_state import Kind, TensorName
from pipetrain.runner.training.checkpoint import tensor_file

SHARED = torch.arange(6.0)
TENSORS = {
    "scalar": torch.tensor(3.5),
    "integer": torch.tensor(2**40),
    "flag": torch.tensor([True, False]),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "transposed": torch.arange(6).reshape(2, 3).t(),
    "part": torch.arange(10)[3:5],
    "shared": SHARED,
    "shared again": SHARED,
    "parameter": torch.nn.Parameter(torch.ones(2)),
}


def test_tensors_of_any_layout_are_read_back(tmp_path):
    path = tmp_path / "x.safetensors"
    tensor_file.write(path, TENSORS)
    found = dict(tensor_file.mapped(dict.fromkeys(TENSORS.keys() - {"half"}, path)))
    assert found.keys() == TENSORS.keys() - {"half"}
    for name, tensor in found.items():
        assert tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name]), name
    path.unlink()
    assert found["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_file_has_the_rights_of_any_other_that_is_made(tmp_path):
    (tmp_path / "other").touch()
    tensor_file.write(tmp_path / "x.safetensors", {"a": torch.ones(1)})
    assert (tmp_path / "x.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_file_of_another_kind_is_refused_by_name(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"PK and so on, a zip file")
    assert_refused("x.safetensors: not a safetensors file", dict, tensor_file.mapped({"a": tmp_path / "x.safetensors"}))


def test_conjugate_is_written_as_its_values(tmp_path):
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    tensor_file.write(tmp_path / "x.safetensors", {"a": tensor})
    ((_, written),) = tensor_file.mapped({"a": tmp_path / "x.safetensors"})
    assert torch.equal(written, tensor)


def test_types_that_the_format_lacks_are_known():
    assert all(tensor_file.takes(tensor.dtype) for tensor in TENSORS.values())
    assert tensor_file.takes(torch.complex64)
    assert not tensor_file.takes(torch.complex128)


def test_folder_that_is_missing_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        tensor_file.write(tmp_path / "no" / "x.safetensors", {"a": torch.ones(1)})
    assert caught.value.filename == str(tmp_path / "no" / "x.safetensors")


def test_file_that_grows_too_large_is_an_error_of_the_system(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            tensor_file.write(tmp_path / "x.safetensors", {"a": torch.ones(1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (TensorName(Kind.MODEL, "conv.weight"), "model.conv.weight"),
        (TensorName(Kind.OPTIMIZER, "conv.weight", "exp_avg"), "optimizer.conv.weight/exp_avg"),
        (TensorName(Kind.STATISTIC, "conv.weight", "update_average"), "statistic.conv.weight/update_average"),
        (TensorName(Kind.HISTORY, "losses"), "run.losses"),
        (TensorName(Kind.CARRIED, "layers.3", "1"), "carried.layers.3/1"),
        (TensorName(Kind.OPTIMIZER, "a/b.weight", "step"), "optimizer.a/b.weight/step"),
    ],
)
def test_name_is_read_back_as_it_was_written(name, text):
    assert str(name) == text
    assert TensorName.parse(text) == name
