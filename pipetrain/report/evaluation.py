"""What `pipetrain eval` prints: a table for readers, or JSON for programs."""

import json
from typing import TYPE_CHECKING, Any

from pipetrain.report.text_table import text_lines

if TYPE_CHECKING:
    from pipetrain.run.finished.evaluate import Evaluation


def as_lines(evaluation: "Evaluation") -> list[str]:
    """The lines of a table: what was evaluated on what, and a line for each metric."""
    rows = [
        ("checkpoint", str(evaluation.checkpoint)),
        ("step", str(evaluation.step)),
        ("model", evaluation.model),
        ("dataset", f"{evaluation.dataset}, {evaluation.samples:,} samples"),
        *((name, _shown(name, value)) for name, value in evaluation.metrics.items()),
        *((name, _signed(value, evaluation.signatures.get(name))) for name, value in evaluation.others.items()),
    ]
    return text_lines(rows, "<<")


def as_json(evaluation: "Evaluation") -> dict[str, Any]:
    """One object; `metrics` are as in metrics.jsonl."""
    return {
        "checkpoint": str(evaluation.checkpoint),
        "step": evaluation.step,
        "model": evaluation.model,
        "dataset": evaluation.dataset,
        "samples": evaluation.samples,
        "metrics": {**evaluation.metrics, **evaluation.others},
        "signatures": dict(evaluation.signatures),
    }


def texts_as_lines(evaluation: "Evaluation") -> str:
    """A line of JSON for each generated text, with its references."""
    lines = ({"text": each.text, "references": list(each.references)} for each in evaluation.texts)
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)


def _shown(name: str, value: float) -> str:
    return f"{value:.4g}" if name in ("loss", "perplexity") else f"{value:.4g} %"


def _signed(value: float, signature: str | None) -> str:
    return f"{value:.4g}" if signature is None else f"{value:.4g}  ({signature})"
