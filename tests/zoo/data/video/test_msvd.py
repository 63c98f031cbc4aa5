"""MSVD in the files in which it is published, with features of its frames."""

import io
import pickle
import sys
import zipfile
from functools import partial

import numpy as np
import pytest
from support.refusals import assert_refused

from pipetrain.zoo.data.video.msvd import FeatureFile, msvd

SMALL = {"train_videos": 3, "validation_videos": 1, "frames": 4}


def written(folder, lengths=(6, 4, 2, 5, 3, 3)):
    """Six videos; that of number i has frames of the value i + its frame / 10."""
    features = {
        f"vid{i}": (i + np.arange(n, dtype=np.float32)[:, None] / 10) * np.ones((1, 2), np.float32)
        for i, n in enumerate(lengths, start=1)
    }
    np.savez(folder / "features.npz", **features)
    ids = [f"-wa0um{i}_10_20" for i in range(1, 7)]
    (folder / "youtube_mapping.txt").write_text("".join(f"{id_} vid{i}\n" for i, id_ in enumerate(ids, start=1)))
    lines = [f"{id_} A man plays {i}.\n{id_} someone plays\n" for i, id_ in enumerate(ids, start=1)]
    (folder / "AllVideoDescriptions.txt").write_text("# a comment\n\n" + "".join(lines) + "unknown_1_2 no features\n")
    return folder


def test_published_files_are_split_by_number_and_renamed(tmp_path):
    found = msvd(str(written(tmp_path)), **SMALL)
    assert (len(found.train.videos), len(found.eval.videos)) == (3, 2)
    assert found.eval.videos.captions(0) == ["A man plays 5.", "someone plays"]
    assert found.train.videos.captions(2)[0] == "A man plays 3."
    assert msvd(str(tmp_path), split="validation", **SMALL).eval.videos.captions(0)[0] == "A man plays 4."


def test_videos_under_their_original_names_are_split_by_published_number(tmp_path):
    written(tmp_path)
    names = [line.split() for line in (tmp_path / "youtube_mapping.txt").read_text().splitlines()]
    renamed = {f"vid{i}": f"-{'zyxwvu'[i - 1]}wa_10_20" for i in range(1, 7)}  # in the opposite order of the alphabet
    (tmp_path / "youtube_mapping.txt").write_text("".join(f"{renamed[vid]} {vid}\n" for _, vid in names))
    text = (tmp_path / "AllVideoDescriptions.txt").read_text()
    for original, vid in names:
        text = text.replace(original, renamed[vid])
    (tmp_path / "AllVideoDescriptions.txt").write_text(text)
    with np.load(tmp_path / "features.npz") as numbered:
        np.savez(tmp_path / "features.npz", **{renamed[vid]: numbered[vid] for vid in numbered.files})
    found = msvd(str(tmp_path), **SMALL)
    assert found.train.videos.captions(0)[0] == "A man plays 1."
    assert found.eval.videos.captions(0)[0] == "A man plays 5."


def test_long_videos_are_thinned_and_short_ones_zero_padded(tmp_path):
    videos = msvd(str(written(tmp_path)), **SMALL).train.videos
    assert videos.frames(0)[:, 0].tolist() == pytest.approx([1.0, 1.1, 1.3, 1.4])
    assert videos.frames(1)[:, 0].tolist() == pytest.approx([2.0, 2.1, 2.2, 2.3])
    assert videos.frames(2)[:, 0].tolist() == pytest.approx([3.0, 3.1, 0.0, 0.0])


def test_captions_may_be_in_the_file_of_the_features(tmp_path):
    entries = {f"features/v{i}": np.ones((2, 3)) for i in range(1, 5)}
    entries |= {f"captions/v{i}": np.array([f"a caption of {i}"]) for i in range(1, 5)}
    np.savez(tmp_path / "features.npz", **entries)
    found = msvd(str(tmp_path), train_videos=2, validation_videos=1, frames=2)
    assert found.eval.videos.captions(0) == ["a caption of 4"]
    assert found.eval.videos.frames(0).shape == (2, 3)


def flat(folder):
    np.savez(folder / "features.npz", **{f"vid{i}": np.ones(3) for i in range(1, 7)})


@pytest.mark.parametrize(
    ("broken", "options", "message"),
    [
        (lambda f: (f / "features.npz").unlink(), {}, "dataset.root=.*: no features.npz, features.h5 or .*AllVideo"),
        (lambda f: (f / "AllVideoDescriptions.txt").unlink(), {}, "no captions: .*AllVideoDescriptions.txt"),
        (lambda f: (f / "AllVideoDescriptions.txt").write_text("vid1\n"), {}, "txt, line 1: vid1 stands alone"),
        (lambda f: (f / "AllVideoDescriptions.txt").write_text("x a b\n"), {}, "names no video of .*features.npz"),
        (lambda _f: None, {"train_videos": 6}, "train_videos=6: .* 6 videos"),
        (lambda _f: None, {"split": "dev"}, "dataset.split=dev: .*validation, test"),
        (flat, {}, r"features.npz: vid1 is float64 \(3,\)"),
    ],
)
def test_files_that_are_missing_or_wrong_are_told_in_one_line(tmp_path, broken, options, message):
    broken(written(tmp_path))
    assert_refused(message, partial(msvd, str(tmp_path), **{**SMALL, **options}))


def test_video_with_other_features_than_the_first_is_named(tmp_path):
    features = {f"vid{i}": np.ones((3, 2 if i == 5 else 4), np.float32) for i in range(1, 7)}
    np.savez(written(tmp_path) / "features.npz", **features)
    videos = msvd(str(tmp_path), **SMALL).eval.videos
    assert_refused("features.npz: vid5 has 2 .*vid1 has 4", partial(videos.frames, 0))


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
    assert_refused(f"^{path}: damaged: ", FeatureFile, path)


def test_packed_array_that_would_fill_memory_is_refused_before_it_is_read(path, monkeypatch):
    monkeypatch.setattr("pipetrain.zoo.data.video.msvd.MOST_BYTES", 20)
    assert_refused(f"{path}: .* is damaged: it unpacks to 0 MB", FeatureFile(path).read, "vid1")


def test_hdf5_without_its_library_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "features.h5").touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert_refused(r"features.h5: .*h5py.*pipetrain\[video\]", partial(FeatureFile, tmp_path / "features.h5"))


def pickled(path):
    np.savez(path, vid1=np.array([{}], dtype=object))


def overwritten(path):
    np.savez_compressed(path, vid1=np.arange(500.0))
    content = bytearray(path.read_bytes())
    content[60:160] = b"\xff" * 100
    path.write_bytes(content)


def larger_than_memory(path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**14,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vid1.npy", header.getvalue())


@pytest.mark.parametrize(
    ("write", "reason"), [(pickled, ".*allow_pickle"), (overwritten, ""), (larger_than_memory, "Unable to allocate")]
)
def test_array_that_cannot_be_read_is_named(tmp_path, write, reason):
    path = tmp_path / "features.npz"
    write(path)
    assert_refused(f"^{path}: vid1 is damaged: {reason}", partial(FeatureFile(path).read, "vid1"))
