"""Directories of runs that are over, as `report runs` finds them."""

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

STAGES = (
    {"weight_bytes": 400, "forward_staleness": [1, 2], "weight_bytes_peak": 800, "activation_bytes_peak": 30,
     "peak_memory_bytes": 5000, "idle_share": 0.5},
    {"weight_bytes": 400, "forward_staleness": [], "weight_bytes_peak": 400, "activation_bytes_peak": 10,
     "peak_memory_bytes": 7000, "idle_share": 0.25},
)  # fmt: skip
"""Of all: 2 and 0 updates late, 1.5 copies, 1.2 kB and 40 B, 7 kB, idle for 3/8."""


def write_run(folder: Path, *overrides: str, top1: float = 50.0, status: str = "completed", **more: Any) -> None:
    """A run that was started with these overrides and evaluated twice: at 10 s below `top1`, at 20 s with it."""
    asked = dict(word.lstrip("+").split("=", 1) for word in overrides)
    method, seed = asked.get("method", "gpipe"), int(asked.get("seed", 0))
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text("".join(f"- {word}\n" for word in overrides) or "[]\n")
    config = OmegaConf.from_dotlist([f"{name}={value}" for name, value in asked.items() if "." in name])
    OmegaConf.save(OmegaConf.merge({"seed": seed, "train": {"epochs": 2}}, config), folder / "config.yaml")
    values = {"final": {"top1": top1, "loss": 1.0}, "best": {"top1": top1 + 5, "loss": 0.5}}
    numbers = {"steps": 10, "wall_s": 20.0, "samples_per_second": 300.0 + seed}
    summary = {"status": status, "method": method, "seed": seed, "per_stage": STAGES, **numbers, **values, **more}
    (folder / "summary.json").write_text(json.dumps(summary))
    records = [
        {"kind": kind, "step": 5 * epoch, "epoch": epoch, "wall_s": 10.0 * epoch, **fields}
        for epoch in (1, 2)
        for kind, fields in (
            ("epoch", {"samples_per_second": 100.0 * epoch}),
            ("eval", {"eval_s": 0.1, "eval_top1": top1 - 2 + epoch, "eval_loss": 1.0}),
        )
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
