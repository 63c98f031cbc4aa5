"""`pipetrain list`: what there is, a line each, taken from the configuration files and the code they name."""

import json
from typing import Any

from pipetrain.config.choices import KINDS, Choice, choices

__all__ = ["KINDS", "rows", "show"]


def show(kinds: list[str], as_json: bool) -> None:
    """Prints the rows of each kind."""
    listed = {kind: rows(kind) for kind in kinds}
    if as_json:
        print(json.dumps(listed[kinds[0]] if len(kinds) == 1 else listed, indent=2))
        return
    for kind, found in listed.items():
        if len(kinds) > 1:
            print(f"{kind}:")
        width = max((len(row["name"]) for row in found), default=0)
        for row in found:
            extra = f"  [{row['layers']} layers, {row['parameters']:,} parameters]" if "layers" in row else ""
            print(f"{'  ' if len(kinds) > 1 else ''}{row['name']:{width}}  {row['summary']}{extra}")


def rows(kind: str) -> list[dict[str, Any]]:
    """`name` and `summary` of each; of models also `task`, `parameters` and `layers`, for CIFAR-10's pictures."""
    return [
        {"name": choice.name, "summary": choice.summary, **(_size(choice) if kind == "models" else {})}
        for choice in choices(KINDS[kind])
    ]


def _size(choice: Choice) -> dict[str, Any]:
    import torch

    from pipetrain.run.build import build_chain

    with torch.device("meta"):
        chain = build_chain({"model": choice.content, "seed": 0}, _Images())
    parameters = sum(parameter.numel() for parameter in chain.module.parameters())
    return {"task": "pictures", "parameters": parameters, "layers": len(chain)}


class _Images:
    """What the models are sized for: CIFAR-10."""

    channels, classes, size = 3, 10, (32, 32)
