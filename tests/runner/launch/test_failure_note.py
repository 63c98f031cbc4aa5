"""Notes of why workers failed."""

from pipetrain.runner.launch.failure_note import FailureKind, FailureNote, failure_notes
from pipetrain.runner.tracking.run_directory import RunDirectory

FAILED = FailureNote(FailureKind.FAILED, "KeyError: 'hung'", "Traceback\n")
HUNG = FailureNote(FailureKind.HUNG, "8 s in F3.0")


def test_notes_are_read_as_they_were_left_by_process(tmp_path):
    run = RunDirectory(tmp_path)
    assert failure_notes(run) == {}
    FAILED.leave(run, 10)
    HUNG.leave(run, 2)
    assert list(failure_notes(run).items()) == [(2, HUNG), (10, FAILED)]
    FailureNote(FailureKind.FAILED, "ValueError: one\ntwo").leave(run, 0)
    assert failure_notes(run)[0].line == "failed: ValueError: one two"
    run.forget_failures()
    assert list(run.logs.iterdir()) == []


def test_note_that_a_full_disk_has_cut_short_is_none(tmp_path):
    run = RunDirectory(tmp_path)
    HUNG.leave(run, 0)
    for text in ("", '{"kind": "hu', "{}", '{"kind": "odd", "reason": ""}'):
        run.failure_note(0).write_text(text)
        assert failure_notes(run) == {}
