"""What becomes of a command whose output nobody reads."""

import os
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from support.cli import TINY, arguments, environment

from pipetrain.commands.standard_streams import LenientStream

_PRINTS = (
    "from pipetrain.commands.standard_streams import make_lenient; import sys; make_lenient(); {}; sys.stdout.flush()"
)


def pipe_without_a_reader():
    read, write = os.pipe()
    os.close(read)
    return LenientStream(os.fdopen(write, "wb"), "utf-8")


def test_output_that_nobody_reads_is_dropped():
    with pipe_without_a_reader() as stream:
        print("one", file=stream, flush=True)
        print("two" * 10_000, file=stream)


@pytest.mark.parametrize("coding", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_letters_that_an_encoding_lacks_are_escaped(tmp_path, coding):
    words = [sys.executable, "-c", _PRINTS.format(r"print('4 \xb1 1')")]
    done = subprocess.run(words, cwd=tmp_path, env=environment() | coding, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4 \\xb1 1\n", "")


@pytest.mark.parametrize(("flags", "times"), [([], 1), (["-W", "always"], 2)])
def test_warning_is_shown_once_although_filters_change(tmp_path, flags, times):
    work = (
        "from pipetrain.commands.standard_streams import show_warnings_once; show_warnings_once(); import warnings\n"
        "for _ in range(2):\n"
        "    warnings.warn('deprecated', FutureWarning)\n"
        "    with warnings.catch_warnings(action='ignore'): pass"
    )
    words = [sys.executable, *flags, "-c", work]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("FutureWarning: deprecated")) == (0, times)


def test_stream_that_user_code_closes_goes_on(tmp_path):
    stream = LenientStream((tmp_path / "out").open("wb"), "utf-8")
    print("one", file=stream)
    stream.close()
    print("two", file=stream, flush=True)
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"), [(("list", "methods"), 1), (("run", *TINY, "executor=simulated", "hydra.run.dir=run"), 0)]
)
def test_full_disk_under_the_output_is_named_and_ends_no_run(tmp_path, words, code):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            arguments(*words), cwd=tmp_path, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True
        )
    line = "pipetrain: error: standard output: no space left on device; the rest of it is lost\n"
    assert (done.returncode, done.stderr) == (code, line)


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_take_no_output_of_other_files(tmp_path, closed):
    inherits = "import os; assert all(os.get_inheritable(number) for number in range(3)); "
    work = inherits + "f = open('file', 'w'); print('out'); print('err', file=sys.stderr); f.write('kept'); f.close()"
    words = [sys.executable, "-c", _PRINTS.format(work)]
    done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *words], cwd=tmp_path, env=environment(), timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "kept"


def test_width_of_the_terminal_is_known(tmp_path):
    ours, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 61))
    work = "import shutil; sys.exit(shutil.get_terminal_size().columns)"
    words = [sys.executable, "-c", _PRINTS.format(work)]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), stdout=terminal, timeout=60)
    os.close(terminal)
    os.close(ours)
    assert done.returncode == 61


def test_unbuffered_output_stays_unbuffered(tmp_path):
    words = [sys.executable, "-c", _PRINTS.format("import os; print('out', end=''); os._exit(0)")]
    done = subprocess.run(words, cwd=tmp_path, env=environment(PYTHONUNBUFFERED="1"), capture_output=True, timeout=60)
    assert done.stdout == b"out"
