"""What an evaluation prints."""

from dataclasses import replace
from pathlib import Path

from pipetrain.report.evaluation import as_json, as_lines, texts_as_lines
from pipetrain.run.decoder import GeneratedText
from pipetrain.run.finished.evaluate import Evaluation

FOUND = Evaluation(
    Path("/runs/a/checkpoints/step-00000040"), 40, "lenet5", "mnist", 10000, {"loss": 1.29317, "top1": 56.5625}
)


def test_table_says_what_was_evaluated_on_what():
    assert as_lines(FOUND) == [
        "checkpoint  /runs/a/checkpoints/step-00000040",
        "step        40",
        "model       lenet5",
        "dataset     mnist, 10,000 samples",
        "loss        1.293",
        "top1        56.56 %",
    ]


def test_perplexity_is_no_percentage():
    assert as_lines(replace(FOUND, metrics={"perplexity": 12.5}))[-1] == "perplexity  12.5"


def test_metric_of_generated_text_is_no_percentage_and_says_how_it_was_computed():
    found = replace(FOUND, others={"bleu": 25.125, "length": 3.0}, signatures={"bleu": "nrefs:1|beam:5"})
    assert as_lines(found)[-2:] == ["bleu        25.12  (nrefs:1|beam:5)", "length      3"]
    assert as_json(found)["metrics"] == {"loss": 1.29317, "top1": 56.5625, "bleu": 25.125, "length": 3.0}
    assert as_json(found)["signatures"] == {"bleu": "nrefs:1|beam:5"}


def test_generated_texts_are_lines_of_json():
    found = replace(FOUND, texts=[GeneratedText("ein Wort", ["ein Wort", "1 Wort"]), GeneratedText("für", ["für"])])
    assert texts_as_lines(found) == (
        '{"text": "ein Wort", "references": ["ein Wort", "1 Wort"]}\n{"text": "für", "references": ["für"]}\n'
    )


def test_json_has_the_metrics_in_full():
    assert as_json(FOUND) == {
        "checkpoint": "/runs/a/checkpoints/step-00000040",
        "step": 40,
        "model": "lenet5",
        "dataset": "mnist",
        "samples": 10000,
        "metrics": {"loss": 1.29317, "top1": 56.5625},
        "signatures": {},
    }
