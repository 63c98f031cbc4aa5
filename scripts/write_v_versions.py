"""Measures `1f1b_v` against `1f1b` in short runs: the table in docs/methods.md, and its figure.

python scripts/write_v_versions.py
"""

import re
from pathlib import Path

from papers.v_versions import PROCESSES, draw, measured, table
from pipetrain.runner.tracking.files import write_whole

_DOCS = Path(__file__).resolve().parents[1] / "docs"
_TABLE = re.compile(r"(?<=<!-- made by `python scripts/write_v_versions.py` -->\n\n)(\|.*\n)+")

if __name__ == "__main__":
    rows = [measured(schedule, count) for count in PROCESSES for schedule in ("1f1b", "1f1b_v")]
    draw(_DOCS / "images" / "v_versions.svg", rows)
    page = _DOCS / "methods.md"
    write_whole(page, _TABLE.sub(f"{table(rows)}\n", page.read_text(encoding="utf-8")))
    print(page)
