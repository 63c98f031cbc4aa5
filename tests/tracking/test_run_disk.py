"""Which errors are for want of room in the run directory."""

import errno
import multiprocessing
import resource
from pathlib import Path

import pytest

from pipetrain.failure import Failure, RemoteError, described
from pipetrain.tracking import run_disk
from pipetrain.tracking.run_directory import RunDirectory

FULL = "No space left on device"


def raised(error):
    """The error of a worker, as its launcher gets it."""
    return RemoteError(Failure(described(error), f"Traceback (most recent call last):\n{error!s}"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_error_without_file_or_in_run_means_no_room_in_run(tmp_path, number):
    run = RunDirectory(tmp_path)
    words = {errno.ENOSPC: FULL, errno.EDQUOT: "Disk quota exceeded", errno.EFBIG: "File too large"}[number]
    for error in (OSError(number, words), OSError(number, words, str(tmp_path / "metrics.jsonl"))):
        assert run_disk.shortage(run, error) == words.lower()
        assert run_disk.shortage(run, raised(error)) == words.lower()


def test_disk_that_fails_is_named_with_the_file(tmp_path):
    run, words = RunDirectory(tmp_path), "Input/output error"
    for error in (OSError(errno.EIO, words, str(run.metrics)), OSError(errno.EIO, words)):
        file = " in metrics.jsonl" if error.filename else ""
        assert run_disk.shortage(run, error) == run_disk.shortage(run, raised(error)) == f"input/output error{file}"
    assert run_disk.shortage(run, OSError(errno.EIO, words, "/data/train.bin")) is None


def test_error_with_other_file_is_not_want_of_room_in_run(tmp_path):
    error = OSError(errno.ENOSPC, FULL, "/tmp/elsewhere/cache")
    for each in (error, raised(error)):
        assert run_disk.shortage(RunDirectory(tmp_path), each) is None


def test_error_of_user_code_file_is_not_want_of_room_in_run(tmp_path):
    with pytest.raises(OSError, match=FULL) as caught, Path("/dev/full").open("w") as full:
        full.write("kept by a data set")
    assert run_disk.shortage(RunDirectory(tmp_path), caught.value) is None


def test_full_shared_memory_is_named_and_not_run_directory(tmp_path):
    multiprocessing.Lock()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            multiprocessing.Lock()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert run_disk.shortage(RunDirectory(tmp_path), caught.value) is None
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # without this test, which is no code of ours
    assert described(caught.value) == "/dev/shm: File too large"
