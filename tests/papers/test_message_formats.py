"""The page of formats of messages: what is compared with what, and what intervals decide."""

import csv
import json
from pathlib import Path

import pytest

from papers.message_formats import measured
from papers.message_formats_page import page, table_rows, write
from papers.targets import ReproductionTarget, command_of

COLUMNS = (
    "method", "partition.stages", "seed", "status", "loss", "loss_steps", "early_loss_steps", "optimizer.lr",
    "messages.activations.name", "messages.activations.bits", "message_bytes", "message_share",
)  # fmt: skip
PLAIN = (2.0, 2.2, 2.1)


def runs(method, form, losses, *, stages=2, bits="", sent=("", ""), steps=""):
    """Rows of runs with seeds from 1; a loss of None is a run that diverged."""
    return [
        (method, stages, seed, "diverged" if loss is None else "completed", loss, "", steps, 0.03, form, bits, *sent)
        for seed, loss in enumerate(losses, 1)
    ]


def store(folder, preset, *rows):
    target = ReproductionTarget(f"messages/{preset}", "small")
    path = target.results(folder) / "runs.csv"
    path.parent.mkdir(parents=True)
    path.with_name("made.json").write_text(json.dumps({"command": command_of(target.words(Path("DIR")))}))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *(row for each in rows for row in each)])


@pytest.fixture
def results(tmp_path):
    store(
        tmp_path,
        "adamw",
        runs("gpipe", "", PLAIN, steps=100),
        runs("gpipe", "int8", (2.01, 2.21, 2.12), sent=(100, 0.25), steps=120),
        runs("gpipe", "int4", (2.3, 2.5, 2.41), sent=(50, 0.125)),
        runs("pipedream", "", (2.4, 2.6, 2.5)),
        runs("pipedream", "int8", (2.41, 2.6, 2.52), sent=(100, 0.25)),
        runs("pipedream", "int4", (3.4, 3.7, 3.55), sent=(50, 0.125)),
        runs("pipedream", "topk", (2.4, None, 2.7), sent=(80, 0.2)),
    )
    store(
        tmp_path,
        "activations",
        runs("gpipe", "", PLAIN),
        runs("gpipe", "int4", (2.2, 2.4, 2.31), bits=4, sent=(225, 0.5625)),
        runs("gpipe", "int4", (2.8, 2.9, 2.85), bits=2, sent=(210, 0.53)),
        runs("gpipe", "aq", (2.01, 2.2, 2.11), bits=4, sent=(250, 0.625)),
        runs("gpipe", "aq", (2.3, 3.4, 2.7), bits=2, sent=(230, 0.58)),
        runs("gpipe", "tah", (2.3, 2.52, 2.42), bits=4, sent=(230, 0.58)),
    )
    return tmp_path


def row(text, *cells):
    """The cells of the first row that begins with these."""
    beginning = f"| {' | '.join(cells)} |"
    found = next(line for line in text.splitlines() if line.startswith(beginning))
    return [cell.strip() for cell in found.split("|")[1:-1]]


def test_formats_are_compared_with_plain_messages_of_the_same_method_by_seed(results):
    gpipe, pipedream = measured(results).every
    assert gpipe.cost("int8", 2).middle == pytest.approx(1.0064, abs=1e-4)
    assert pipedream.cost("int4", 2).middle == pytest.approx(1.42, abs=1e-2)
    assert pipedream.to_synchronous("loss", "int4", 2).middle == pytest.approx(1.69, abs=1e-2)
    assert gpipe.cost("int8", 8) is None


def test_interval_decides_whether_a_format_matches_plain_messages(results):
    _, _, int8, int4, topk = row(page(measured(results)), "pipedream")[1:]
    assert int8.endswith("✓")
    assert int4.endswith("✗")
    assert topk == "infinite"


def test_costs_of_a_format_are_compared_with_those_under_gpipe(results):
    said = {(each["method"], each["format"]): each["than gpipe's"] for each in table_rows(measured(results))}
    assert said["pipedream", "int4"] == "more"
    assert said["pipedream", "int8"] == "undecided"
    assert said["gpipe", "int4"] == said["pipedream", "plain"] == ""


def test_bytes_of_plain_messages_follow_from_the_share_of_others(results):
    assert row(page(measured(results)), "bytes of a step, D = 2")[1:] == ["400 B", "", "", "100 B", "50 B", "80 B"]


def test_slowdown_is_over_synchronous_run_with_plain_messages(results):
    found = {(each["method"], each["format"]): each["slowdown to the loss after 10%"] for each in
             table_rows(measured(results))}  # fmt: skip
    assert found["gpipe", "int8"] == "1.20"
    assert found["pipedream", "int8"] == "infinite"


@pytest.mark.parametrize(
    ("claim", "verdict", "answers"),
    [
        ("AQ-SGD: activations in 2 to 4 bits do not cost quality", "seen in part at small scale", "yes, undecided"),
        ("TAH-Quant: activations in 3 to 4 bits do not compromise convergence", "not seen at small scale", "no"),
        ("TAH-Quant: trains as well as AQ-SGD", "not seen at small scale", "no"),
    ],
)
def test_verdict_on_claim_is_that_of_synchronous_runs(results, claim, verdict, answers):
    assert row(page(measured(results)), claim)[1:] == [verdict, answers]


def test_bytes_of_activations_leave_out_plain_gradients(results):
    assert row(page(measured(results)), "bytes of activations")[1:4] == ["100%", "12%", "6%"]


def test_files_are_a_page_two_figures_and_a_table(results, tmp_path):
    output = tmp_path / "pages"
    (output / "images").mkdir(parents=True)
    names = [path.name for path in write(results, output)]
    assert names == ["messages.svg", "messages_slowdown.svg", "verdicts.csv", "messages.md"]
    assert "Nothing has been measured yet." in page(measured(tmp_path / "none"))
