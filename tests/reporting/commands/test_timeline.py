"""`pipetrain timeline`: with settings, and with the directory of a run."""

import json
import re
from unittest import mock

import pytest
from omegaconf import OmegaConf
from support.checked_lists import checked_lists
from support.cli import TINY, run_here
from support.pages import event, trace_text
from support.process_player import process_list
from support.quick_cases import every

from pipetrain import cli
from pipetrain.engine.program.playback import MessageTimes, play
from pipetrain.planning.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.reporting.timeline import drawing, from_settings
from pipetrain.reporting.timeline.composed_phases import composed_phases
from pipetrain.reporting.timeline.from_settings import GivenTimes
from pipetrain.runner.config.composition import composed
from pipetrain.runner.training.planned_run import plan_run


def drawn(tmp_path, *words):
    """The panels that the command draws."""
    with mock.patch.object(drawing, "draw", side_effect=drawing.draw) as draw:
        assert cli.carry_out(["timeline", *words, "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "timeline.svg").read_text().startswith("<svg")
    assert "</svg>" in (tmp_path / "out" / "timeline.html").read_text()
    return draw.call_args.args[1]


def names(panel):
    """What each stage does, as `F3.0@v1`."""
    return [[box.name for box in row] for row in panel.rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        "method=pipedream partition.stages=3",
        "method=gpipe partition.stages=3 train.microbatches=2",
        "method=timeprest partition.stages=3 train.microbatches=2",
        "method=pipemare partition.stages=3",
        "method=pipeoptim partition.stages=2 train.microbatches=2 train.recompute=true",
        "method=pipemare partition=explicit partition.boundaries=[2,4,7] train.recompute_boundaries=[4]",
    ],
    ids=["1f1b", "gpipe", "nf1b", "pipemare", "recompute", "recompute across stages"],
)
def test_timeline_draws_what_would_run(tmp_path, settings):
    (panel,) = drawn(tmp_path, *settings.split(), "--minibatches", "4")
    rules = composed_phases(settings.split())[0].rules
    lists = checked_lists(rules.schedule, rules.num_stages, rules.num_microbatches, 4, rules.segments)
    planned = [rules.planned(r, 4) for r in range(rules.num_stages)]
    assert [[str(box.operation) for box in row] for row in panel.rows] == [[str(op) for op in each] for each in lists]
    assert [[box.read for box in row] for row in panel.rows] == [
        [None if op.kind == "U" else str(read) for op, read, *_ in each] for each in planned
    ]
    default = GivenTimes().times(rules.num_stages, rules.num_microbatches)
    played = play(lists, default.duration, rules.segments)
    assert [[(box.start, box.end) for box in row] for row in panel.rows] == [
        [(p.start, p.end) for p in row] for row in played
    ]


@pytest.mark.parametrize(
    "settings",
    [
        "method=gpipe schedule=interleaved_1f1b partition.stages=4 train.microbatches=2",
        "method=naive_async schedule=1f1b_v partition.stages=4",
    ],
)
def test_timeline_has_a_row_for_each_process_in_the_order_of_its_list(tmp_path, capsys, monkeypatch, settings):
    monkeypatch.setenv("COLUMNS", "400")
    (panel,) = drawn(tmp_path, *settings.split(), "--minibatches", "3")
    rules = composed_phases(settings.split())[0].rules
    N = rules.num_microbatches
    for p, row in enumerate(panel.rows):
        listed = process_list(rules.schedule, p, 4, N, 3)
        timed = [(r, op) for r, op in listed if op.kind != "U"]
        assert [(box.stage, box.operation) for box in row if box.operation.kind != "U"] == timed
        assert {panel.chunk(box) for box in row} == {0, 1}
    assert [stage.name for stage in panel.stages] == [rules.placement.name(p) for p in range(2)]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[2:6]] == [[str(r), str(rules.placement.process_of(r))] for r in range(4)]
    grid = next(line for line in lines if line.startswith(rules.placement.name(0)))
    first = [f"{r}:{op}" for r, op in process_list(rules.schedule, 0, 4, N, 3) if op.kind != "U"]
    assert [cell for cell in grid.split()[4:] if cell != "."] == first
    svg = (tmp_path / "out" / "timeline.svg").read_text()
    assert "<title>stage 2: F0.0@v0" in svg


def test_timeline_of_pipedream_on_4_workers_matches_figure_4(tmp_path):
    """Start-up of four minibatches, then F and B in turn; a backward takes two forwards, W4 is never idle."""
    (panel,) = drawn(tmp_path, "method=pipedream", "partition.stages=4")
    first = [(str(box.operation), box.start) for box in panel.rows[0] if box.read][:9]
    assert first == [
        ("F0.0", 0), ("F1.0", 1), ("F2.0", 2), ("F3.0", 3),
        ("B0.0", 10), ("F4.0", 12), ("B1.0", 13), ("F5.0", 15), ("B2.0", 16),
    ]  # fmt: skip
    last = [(str(box.operation), box.start) for box in panel.rows[3] if box.read][:4]
    assert last == [("F0.0", 3), ("B0.0", 4), ("F1.0", 6), ("B1.0", 7)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "operation", "reads"),
    [
        ("method=pipedream", "F4.0", ["v1", "v2", "v3", "v4"]),
        ("method=pipeoptim", "F4.0", ["v1+3", "v2+2", "v3+1", "v4"]),
        ("method=timeprest train.microbatches=2", "F3.1", ["v0", "v0", "v0", "v0"]),
        ("method=v_timeprest train.microbatches=2", "F2.0", ["v0", "v0", "v1", "v2"]),
    ],
)
def test_timeline_labels_are_those_of_the_papers_figures(tmp_path, settings, operation, reads):
    """PipeOptim § II on fig. 1(d), III on 1(e); V-TiMePReSt § III on fig. 2(b), III-A on 2(c)."""
    (panel,) = drawn(tmp_path, *settings.split(), "partition.stages=4", "--minibatches", "5")
    found = [{str(box.operation): box.read for box in row}[operation] for row in panel.rows]
    assert found == reads


def test_timeline_prints_rate_idle_share_and_what_is_in_flight(tmp_path, capsys):
    drawn(tmp_path, "method=gpipe", "partition.stages=3", "train.microbatches=4", "--backward-time", "1")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "method=gpipe, schedule=gpipe, D = 3, N = 4"
    assert [line.split() for line in lines[2:5]] == [[str(r), "4", "33.3%", "33.3%"] for r in range(3)]
    assert lines[5] == "steady state: 0.08333 minibatches in a unit of time"
    assert lines[-1].endswith("timeline.svg, timeline.html")


@pytest.mark.slow
def test_times_and_link_speeds_give_samples_per_second(tmp_path, capsys):
    words = (
        "method=pipeoptim partition.stages=2 train.batch_size=50 --seconds --forward-time 0.1,0.2 --backward-time 0.2"
    )
    drawn(tmp_path, *words.split())
    assert "steady state: 2.5 minibatches/s, 125 samples/s" in capsys.readouterr().out
    drawn(tmp_path, *words.split(), "--message-bytes", "1e6", "--link-bandwidth", "1e6", "--link-time", "0.5")
    # two minibatches go round in 0.1 + 1.5 + 0.2 + 0.2 + 1.5 + 0.2 seconds
    assert "steady state: 0.5405 minibatches/s, 27.03 samples/s" in capsys.readouterr().out


@pytest.mark.slow
def test_timeline_draws_each_choice_of_a_sweep_and_each_phase(tmp_path):
    panels = drawn(tmp_path, "method=gpipe,pipedream", "partition.stages=2", "--minibatches", "2")
    assert [panel.title for panel in panels] == [
        "method=gpipe, schedule=gpipe, D = 2, N = 1", "method=pipedream, schedule=1f1b, D = 2, N = 1",
    ]  # fmt: skip
    assert panels[0].end == panels[1].end == 9
    panels = drawn(tmp_path, "phases=[{method: gpipe, schedule: gpipe, steps: 1}, {}]", "--minibatches", "3")
    assert [panel.title.split(", D")[0] for panel in panels] == [
        "phase 0: method=gpipe, schedule=gpipe", "phase 1: method=pipeoptim, schedule=1f1b",
    ]  # fmt: skip
    assert [sum(not box.read for box in panel.rows[0]) for panel in panels] == [1, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    every(
        4,
        [
            ("method=pipeoptim schedule=gpipe", r"does not work with schedule=gpipe"),
            ("partition=ppv partition.ppv=3", r"partition.ppv=3: must be a list"),
            ("--forward-time 1,2,3", r"--forward-time 1,2,3: 3 numbers for 2 stages"),
            ("--minibatches 0", r"--minibatches 0: at least 1"),
            ("--from 3", r"--from 3 needs a run directory"),
            ("--trust", r"--trust needs a run directory"),
            ("method=gpipe nowhere", r"nowhere method=gpipe: give either"),
            ("nowhere", r"nowhere: not a run directory"),
        ],
    ),
)
def test_timeline_that_cannot_be_drawn_is_refused_in_one_line(words, message, capsys, tmp_path):
    assert cli.carry_out(["timeline", *words.split(), "-o", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line), line
    assert not (tmp_path / "out").exists()


def test_more_timelines_than_fit_in_a_figure_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(from_settings, "_MOST_PANELS", 1)
    assert "seed=1,2: 1 timelines at most" in refused(capsys, "seed=1,2")


MS = 1e-3
FORWARD, BACKWARD, UPDATE, LATE = 1 * MS, 2 * MS, 0.5 * MS, 0.5 * MS


@pytest.fixture
def traced(tmp_path):
    """A run of two drain intervals of eight minibatches; every message took a while, and every operation its time."""
    folder = tmp_path / "traced"
    folder.mkdir()
    settings = composed(["method=pipeoptim", "partition.stages=2", "train.batch_size=10", "trace=true"])
    OmegaConf.save(OmegaConf.create(dict(settings.stored)), folder / "config.yaml")
    plan = {"stages": [{"stage": r, "first": r, "last": r + 1} for r in range(2)]}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / ".hydra").mkdir()
    hydra = {"hydra": {"runtime": {"choices": dict(settings.choices)}}}
    OmegaConf.save(OmegaConf.create(hydra), folder / ".hydra" / "hydra.yaml")
    rules = composed_phases(["method=pipeoptim", "partition.stages=2"])[0].rules
    given = GivenTimes([FORWARD], [BACKWARD], update=[UPDATE], link=[LATE]).times(2, 1)
    intervals = [{"epoch": epoch, "first": 0, "last": 8, "start": 8 * epoch, "phase": 0} for epoch in (0, 1)]
    (folder / "trace.json").write_text(trace_text(list(_events(rules, given)), 2, intervals))
    return folder


def _events(rules, given):
    played = play(rules.lists(8), given.duration, None, MessageTimes(given.transfer))
    for start in (0, 8):
        for r, row in enumerate(played):
            for piece, (op, read, *_) in zip(row, rules.planned(r, 8), strict=True):
                name = f"{op.kind}{start + op.minibatch}" + ("" if op.microbatch is None else ".0")
                begin, seconds = piece.start + start, piece.end - piece.start
                yield event(r, name + (f"@{read.moved(start)}" if op.kind != "U" else ""), begin, seconds)
                if r == 1 and op.kind == "F":
                    yield event(r, f"recv {name}", begin - LATE, LATE)


def test_timeline_of_a_run_is_laid_beside_its_prediction(traced, tmp_path, capsys):
    foretold, measured = drawn(tmp_path, str(traced))
    assert names(foretold)[0] == names(measured)[0]
    assert "F4.0@v3+1" in names(measured)[0]
    assert (foretold.begin, foretold.end) == (measured.begin, measured.end)
    assert measured.messages[1][0].what == "recv"
    out = capsys.readouterr().out
    assert "method=pipeoptim, schedule=1f1b, D = 2, N = 1; minibatches 1 to 6" in out
    rows = [line.split() for line in out.splitlines()[2:4]]
    assert [row[:6] for row in rows] == [
        ["0", "1.00", "2.00", "0.50", "2", "2"],
        ["1", "1.00", "2.00", "0.50", "1", "1"],
    ]
    # a minibatch every 1 + 2 + 0.5 ms by the lists; with messages two in (1 + 0.5) + (1 + 2 + 0.5) + (2 + 0.5) ms
    assert "predicted  285.7 minibatches/s, 2,857 samples/s" in out
    assert "measured   266.7 minibatches/s, 2,667 samples/s" in out


@pytest.mark.slow
def test_timelines_get_new_folders_and_run_timelines_their_run(traced, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in ("timeline", "timeline-2"):
        assert cli.carry_out(["timeline", "method=pipedream", "partition.stages=2", "--minibatches", "2"]) == 0
        assert f"written to {folder}: timeline.svg" in capsys.readouterr().out
        assert (tmp_path / folder / "timeline.svg").exists()
    for _ in range(2):
        assert cli.carry_out(["timeline", str(traced)]) == 0
        assert f"written to {traced}/timeline: timeline.svg" in capsys.readouterr().out


def test_timeline_minibatches_can_be_chosen_up_to_the_next_drain(traced, tmp_path, capsys):
    _, measured = drawn(tmp_path, str(traced), "--from", "9", "--minibatches", "3")
    assert "minibatches 9 to 11" in capsys.readouterr().out
    # v8 is what stage 0 had after the drain
    assert "F9.0@v8+1" in names(measured)[0]
    drawn(tmp_path, str(traced), "--from", "6", "--minibatches", "5")
    assert "minibatches 6 to 7" in capsys.readouterr().out


def refused(capsys, *words):
    assert cli.carry_out(["timeline", *words]) == 2
    return capsys.readouterr().err


def test_timeline_of_trace_contradicting_lists_is_refused(traced, tmp_path, capsys):
    path = traced / "trace.json"
    path.write_text(path.read_text().replace("v3+1", "v3+2"))
    line = refused(capsys, str(traced), "-o", str(tmp_path / "out"))
    assert re.search(r"stage 0 has F4.0@v3\+2 where .* say F4.0@v3\+1", line)


@pytest.mark.parametrize(
    ("words", "message"),
    every(
        5,
        [
            ("--from 16", r"--from 16: .*trace.json is of minibatches 0 to 15"),
            ("method=gpipe", r"give either a run directory"),
            ("--update-time 0", r"--update-time cannot be combined"),
            ("--seconds", r"--seconds cannot be combined"),
            ("--config-dir /tmp", r"--config-dir /tmp cannot be combined"),
        ],
    ),
)
def test_timeline_says_what_a_run_does_not_have(traced, words, message, capsys):
    assert re.search(message, refused(capsys, str(traced), *words.split()))


def test_run_timeline_calls_foreign_method_only_if_trusted(traced, tmp_path, capsys):
    path = traced / "config.yaml"
    config = OmegaConf.load(path)
    config.method._target_ = "anothers.Method"
    OmegaConf.save(config, path)
    line = refused(capsys, str(traced), "-o", str(tmp_path / "out"))
    assert f"{path}: method._target_=anothers.Method is not pipetrain's own code" in line
    line = refused(capsys, str(traced), "--trust", "-o", str(tmp_path / "out"))
    assert "anothers" in line
    assert "--trust" not in line


def test_times_that_are_no_numbers_are_told_what_works(capsys):
    with pytest.raises(SystemExit):
        cli.carry_out(["timeline", "--forward-time", "fast"])
    assert "argument --forward-time: fast: one number, or several such as 1,1,2;" in capsys.readouterr().err


def test_timeline_of_a_run_without_a_trace_says_how_to_get_one(traced, capsys):
    (traced / "trace.json").unlink()
    assert re.search(r"has no trace.json; .*trace=true", refused(capsys, str(traced)))


@pytest.mark.slow
def test_timeline_of_a_real_run_agrees_with_its_lists(tmp_path):
    run_here(tmp_path / "run", *TINY, "trace=true", "partition.stages=3", "train.microbatches=2")
    foretold, measured = drawn(tmp_path, str(tmp_path / "run"))
    assert set(names(foretold)[0]) & set(names(measured)[0])


@pytest.mark.slow
def test_timeline_of_a_run_has_the_replicas_of_its_plan(tmp_path):
    labels = plan_run(composed(TINY)).chain.labels
    layers = [tuple(range(3)), tuple(range(3, len(labels)))]
    stages = (PlannedStage(layers[0], 2, 0.1, 1000), PlannedStage(layers[1], 1, 0.1, 1000))
    (tmp_path / "plan.json").write_text(json.dumps(PipelinePlan(stages, 0.1, 0.2, 0.1, tuple(labels)).to_json()))
    words = ("method=pipedream", "partition=file", f"partition.path={tmp_path / 'plan.json'}", "executor=simulated")
    run_here(tmp_path / "run", *TINY, *words, "trace=true")
    for panel in drawn(tmp_path, str(tmp_path / "run")):
        assert len(names(panel)) == 3


def test_timeline_takes_choices_of_a_users_folder(tmp_path, capsys):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults: [override /method: gpipe]\npartition: {stages: 3}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    words = ["experiment=mine", "--config-dir", str(tmp_path), "-o", str(tmp_path / "out")]
    assert cli.carry_out(["timeline", *words]) == 0
    assert "method=gpipe, schedule=gpipe, experiment=mine, D = 3, N = 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    every(
        3,
        [
            (["lr=0.1"], "lr=0.1: no such setting"),
            (["+model.nope=3"], "model.nope=3: pipetrain.zoo.models.resnet_cifar.build has no such parameter"),
            (["method=gpipe", "--config-dir", "/nowhere"], "--config-dir /nowhere: "),
        ],
    ),
)
def test_timeline_refuses_what_a_run_would(capsys, words, message):
    assert message in refused(capsys, *words)
