"""What the docs show of files is what the files are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHOWN = re.compile(r"^`(?P<path>[\w./-]+)`:\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def shown():
    for page in sorted((ROOT / "docs").glob("*.md")):
        for match in SHOWN.finditer(page.read_text(encoding="utf-8")):
            yield pytest.param(match["path"], match["text"], id=f"{page.name}-{match['path']}")


@pytest.mark.parametrize(("path", "text"), list(shown()))
def test_a_file_shown_is_the_file(path, text):
    assert (ROOT / path).read_text(encoding="utf-8") == text


def test_the_page_on_adding_a_method_shows_its_files():
    assert {param.values[0] for param in shown()} >= {"pipetrain/methods/lwp.py", "conf/method/lwp.yaml"}


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]), ids=lambda page: page.name
)
def test_links_inside_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
