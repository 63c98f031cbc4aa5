"""Transcripts in the docs: the commands of a code block, and the output that the page shows for each."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"^```python\n# (?P<name>\w+\.py)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
MEASURED = re.compile(r"\d[\d,]*\.\d+(?: s)?|\d+%|\d[\d,]*(?= samples/s)")
VARYING = r"\d[\d.,]*(?:%| s| min \d+ s)?"
APART = re.compile(r" \((?:evaluation|checkpoints) [^)]*\)")
"""Parts of a wall time, which are left out where they took next to nothing."""
BEST = " (also the best)"
"""Behind the last evaluation, where it is the best one by every metric, which chance decides; else the best follow."""
ELIDED = "..."
FOLDERS = re.compile(r"\.\.\./")
"""In a line, the folders of a path, which vary."""


@dataclass(frozen=True)
class Command:
    """A line after `$ ` and the lines that the page shows below it."""

    line: str
    shown: tuple[str, ...]

    @property
    def refused(self) -> bool:
        """Whether the page shows an error of the configuration or of usage."""
        return any(line.startswith("pipetrain: error:") for line in self.shown)

    @property
    def measured(self) -> bool:
        """Whether the output has numbers that vary by machine."""
        return not self.refused and bool(re.match(r"make |pipetrain run |pipetrain timeline RUN", self.line))

    def shows(self, output: str) -> bool:
        """Whether `output` is what the page shows; a command without lines below it may print anything."""
        printed = "".join(f"{_plain(line)}\n" for line in output.splitlines() if line.strip())
        return not self.shown or re.fullmatch(self._pattern(), printed) is not None

    def _pattern(self) -> str:
        lines = (line for line in self.shown if line.strip())
        return "".join(r"(?:.*\n)*" if line == ELIDED else self._line_pattern(line) + r"\n" for line in lines)

    def _line_pattern(self, line: str) -> str:
        plain = _plain(line)
        parts = FOLDERS.split(plain.removesuffix(BEST))
        ended = rf"(?:{re.escape(BEST)}|\nbest .*)" if plain.endswith(BEST) else ""
        return r"\S*/".join(self._words_pattern(part) for part in parts) + ended

    def _words_pattern(self, words: str) -> str:
        # a line with a setting, such as a warning, has nothing measured
        fixed = MEASURED.split(words) if self.measured and "=" not in words else [words]
        return VARYING.join(re.escape(part) for part in fixed)


def transcripts(page: Path) -> Iterator[list[Command]]:
    """The code blocks of a page that have commands and their output."""
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        commands = [] if match["language"] else list(_commands(match["text"]))
        if any(command.shown for command in commands):
            yield commands


def modules(page: Path) -> dict[str, str]:
    """Python files that a page shows and its commands use: blocks that begin with a comment of the file's name."""
    return {match["name"]: match["text"] for match in MODULE.finditer(page.read_text(encoding="utf-8"))}


def _commands(text: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *shown = part.splitlines()
        yield Command(line, tuple(shown))


def _plain(line: str) -> str:
    return APART.sub("", " ".join(line.split()))
