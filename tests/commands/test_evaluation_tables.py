"""What `pipetrain eval` prints and writes."""

import json
from dataclasses import replace
from pathlib import Path

from pipetrain.commands.evaluate import evaluation_json, evaluation_lines, evaluation_texts
from pipetrain.runner.training.finished.evaluate import Evaluation

FOUND = Evaluation(
    Path("/runs/a/checkpoints/step-00000040"), 40, "lenet5", "mnist", 10000, {"loss": 1.29317, "top1": 56.5625}
)
GENERATED = replace(FOUND, others={"bleu": 25.125, "length": 3.0}, signatures={"bleu": "nrefs:1|beam:5"})


def test_evaluation_table_says_what_was_evaluated_on_what():
    assert evaluation_lines(FOUND) == [
        "checkpoint  /runs/a/checkpoints/step-00000040",
        "step        40",
        "model       lenet5",
        "dataset     mnist, 10,000 samples",
        "loss        1.293",
        "top1        56.56 %",
    ]
    assert "model       x?]0;y?" in evaluation_lines(replace(FOUND, model="x\x1b]0;y\x07"))
    assert evaluation_lines(replace(FOUND, metrics={"perplexity": 12.5}))[-1] == "perplexity  12.5"
    assert evaluation_lines(GENERATED)[-2:] == ["bleu        25.12  (nrefs:1|beam:5)", "length      3"]


def test_evaluation_json_has_the_metrics_in_full():
    assert evaluation_json(GENERATED) == {
        "checkpoint": "/runs/a/checkpoints/step-00000040",
        "step": 40,
        "model": "lenet5",
        "dataset": "mnist",
        "samples": 10000,
        "weights": None,
        "metrics": {"loss": 1.29317, "top1": 56.5625, "bleu": 25.125, "length": 3.0},
        "signatures": {"bleu": "nrefs:1|beam:5"},
    }


def test_generated_texts_are_lines_of_json():
    found = evaluation_texts(replace(FOUND, texts=[("ein Wort", ["ein Wort", "1 Wort"]), ("für", ["für"])]))
    assert [json.loads(line) for line in found.splitlines()] == [
        {"text": "ein Wort", "references": ["ein Wort", "1 Wort"]},
        {"text": "für", "references": ["für"]},
    ]
    assert "für" in found
