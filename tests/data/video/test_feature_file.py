"""Files of named arrays."""

import io
import pickle
import sys
import zipfile

import numpy as np
import pytest

from pipetrain.data.video.feature_file import FeatureFile
from pipetrain.errors import ConfigError

ARRAYS = {"vid1": np.ones((2, 3), np.float32), "features/vid2": np.zeros((1, 3), np.float32)}


@pytest.fixture(params=["npz", "h5"])
def path(request, tmp_path):
    path = tmp_path / f"features.{request.param}"
    if request.param == "npz":
        np.savez(path, **ARRAYS)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            for name, array in ARRAYS.items():
                file[name] = array
    return path


def test_arrays_are_read_by_name_also_in_another_process(path):
    for file in (FeatureFile(path), pickle.loads(pickle.dumps(FeatureFile(path)))):
        assert file.names == ["features/vid2", "vid1"]
        assert np.array_equal(file.read("vid1"), ARRAYS["vid1"])


def test_damaged_file_is_named(path):
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ConfigError, match=rf"^{path}: damaged: "):
        FeatureFile(path)


def test_pickled_arrays_are_not_loaded(tmp_path):
    path = tmp_path / "features.npz"
    np.savez(path, vid1=np.array([{}], dtype=object))
    with pytest.raises(ConfigError, match=r"vid1 is damaged: .*allow_pickle"):
        FeatureFile(path).read("vid1")


def test_hdf5_without_its_library_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "features.h5").touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"features.h5: HDF5 needs h5py.*pip install \"pipetrain\[video\]\""):
        FeatureFile(tmp_path / "features.h5")


def test_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"features.pt: a file of features ends in .npz, .h5, .hdf5"):
        FeatureFile(tmp_path / "features.pt")


def test_compressed_array_that_is_damaged_is_named(tmp_path):
    path = tmp_path / "features.npz"
    np.savez_compressed(path, vid1=np.arange(500.0))
    content = bytearray(path.read_bytes())
    content[60:160] = b"\xff" * 100
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^{path}: vid1 is damaged: "):
        FeatureFile(path).read("vid1")


def test_array_that_no_memory_holds_is_damaged(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**14,)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("vid1.npy", header.getvalue())
    with pytest.raises(ConfigError, match=r"a.npz: vid1 is damaged: Unable to allocate"):
        FeatureFile(tmp_path / "a.npz").read("vid1")
