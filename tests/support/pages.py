"""Checks pages, and writes traces event by event."""

import json
from html.parser import HTMLParser

_VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Checks that every element is closed in turn, and keeps the attributes."""

    def __init__(self, text):
        super().__init__()
        self._open = []
        self.attributes = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.attributes += attributes
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag


def event(stage, name, start, seconds, **more):
    """An event of a trace; times in seconds, as the name says what it is: `F3.0@v1`, `U3` or `recv F3.0`."""
    operation, _, read = name.removeprefix("recv ").removeprefix("send ").partition("@")
    number, _, microbatch = operation[1:].partition(".")
    args = {"operation": operation, "minibatch": int(number), "microbatch": int(microbatch) if microbatch else None}
    if read:
        version = int(read[1:].split("+")[0].split("-")[0])
        args |= {"read": read, "version": version, "staleness": int(number) - version}
    category = name.split()[0] if " " in name else name[0]
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": stage,
        "ts": start * 1e6, "dur": seconds * 1e6, "args": args | more,
    }  # fmt: skip


def trace_text(events, stages, intervals=()):
    tracks = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": r, "args": {"name": f"stage {r}"}} for r in range(stages)
    ]
    return json.dumps({"traceEvents": [*tracks, *events], "metadata": {"drain_intervals": list(intervals)}})
