"""The files of a run: set aside for a later one, taken back after a refusal."""

from pipetrain.tracking.run_directory import RunDirectory, finished_runs, write_whole


def test_refused_run_takes_back_its_empty_default_directories(tmp_path):
    run = RunDirectory(tmp_path / "outputs" / "2026-01-02" / "03-04-05")
    run.path.mkdir(parents=True)
    run.remove_if_empty()
    assert not (tmp_path / "outputs").exists()
    assert tmp_path.exists()


def test_refused_run_leaves_what_others_use(tmp_path):
    run = RunDirectory(tmp_path / "outputs" / "2026-01-02" / "03-04-05")
    run.path.mkdir(parents=True)
    other = RunDirectory(run.path.with_name("01-02-03"))
    other.path.mkdir()
    run.remove_if_empty()
    assert not run.path.exists()
    assert other.path.exists()
    named = RunDirectory(tmp_path / "mine" / "run")
    named.path.mkdir(parents=True)
    named.remove_if_empty()
    assert named.path.parent.exists()


def test_earlier_run_is_set_aside_with_its_checkpoints(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.set_aside() is None
    run.checkpoint(3).mkdir(parents=True)
    write_whole(run.summary, "{}")
    (tmp_path / "notes.txt").write_text("mine")
    assert finished_runs(tmp_path) == [run]
    aside = run.set_aside()
    assert aside == tmp_path / "earlier-1"
    assert RunDirectory(aside).checkpoint(3).is_dir()
    assert (tmp_path / "notes.txt").exists()
    assert finished_runs(tmp_path) == []
