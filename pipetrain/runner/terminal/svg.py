"""The SVG that matplotlib writes, with tooltips and in about a third of the bytes."""

import re
from collections import Counter
from collections.abc import Iterator
from hashlib import sha1

_FONT = "text{font-family: 'DejaVu Sans', sans-serif}"
_REPLACED = {
    r'<g id="tooltip:([^"]*)">': r"<g><title>\1</title>",
    r'<g id="tooltip(\d+):([^"]*)">': r'<g data-group="\1"><title>\2</title>',
    r' transform="rotate\(-0 [^"]*"': "",
    r"(?m)^ +": "",
    r" font-family: 'DejaVu Sans';": "",
    r'<style type="text/css">': f"<style>\n{_FONT}",
    r"\*\{stroke-linejoin: round; stroke-linecap: butt\}": "svg{stroke-linejoin:round}",  # a group can have another
    r'"fill: none; opacity: 0"': '"fill: none; pointer-events: all"',  # what cannot be seen has a tooltip all the same
    r"(?<=[^\n])</style>": "\n</style>",
}
_TOKEN = re.compile(r"<[^>]*>|[^<]+")
_ID = re.compile(r' id="([^"]*)"')
_STYLED = re.compile(r'(?: clip-path="(?P<clip>[^"]*)")? style="(?P<style>[^"]*)"')
_TITLE, _PATH = r"<g[^>]*><title>[^<]*</title>\n", r'<path d="[^"]*" class="CLASS"/>\n'
_IN_A_ROW = [
    re.compile(unit.replace("CLASS", r"(\w+)") + f"(?:{unit})".replace("CLASS", r"\1") + "{2,}")
    for unit in (_PATH, rf"{_TITLE}{_PATH}</g>\n", r'<text class="CLASS"[^>]*>[^<]*</text>\n')
]
"""Three or more shapes, shapes with tooltips, or texts, all of the same class."""
_APART = re.compile(r"(?:^|;)(?:opacity|clip-path):")
"""In a style that shapes cannot share through a group."""
_COMMAND = re.compile(r"([MLQCz])([^MLQCz]*)")
_DIGITS = 2
"""Decimals of a coordinate, in points."""
_UNIT: int = 10**_DIGITS


def dense(text: str) -> str:
    """The drawing with a class for each style, for many in a row by a group, without empty groups and unused names.

    Paths are relative. A group with the id `tooltip:TEXT` or `tooltipGROUP:TEXT` shows the text where it is pointed at.
    The name of a class follows from its style, so that several drawings can be on one page.
    """
    for pattern, replacement in _REPLACED.items():
        text = re.sub(pattern, replacement, text)
    text = "".join(_without_bare_groups(_TOKEN.findall(text)))
    text = re.sub(r' d="([^"]*)"', lambda found: f' d="{_relative(found[1])}"', text)
    text = re.sub(r'(?<= )(x|y)="([^"]*)"', lambda found: f'{found[1]}="{_shown(_whole(found[2]))}"', text)
    text = re.sub(r' transform="[^"]*"', _each_number, text)
    named = set(re.findall(r"#([\w.-]+)", text))
    text = _ID.sub(lambda found: found[0] if found[1] in named else "", text)
    return _in_groups(_without_repeated_classes(re.sub(r"\n\n+", "\n", _with_classes(text))))


def _without_bare_groups(tokens: list[str]) -> Iterator[str]:
    """The tokens without the tags of groups that are empty, or have neither attributes nor a tooltip."""
    left_out = list[bool]()
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if re.match(r"<g[ />]", token):
            if token.endswith("/>"):
                continue
            left_out.append(_ID.sub("", token) == "<g>" and following != "<title>")
            if left_out[-1]:
                continue
        elif token == "</g>" and left_out.pop():
            continue
        yield token


def _relative(path: str) -> str:
    """A path of lines and curves, with all but the beginnings of its parts relative to the point before."""
    words, at, begin = list[str](), (0, 0), (0, 0)
    for command, numbers in _COMMAND.findall(path):
        values = [_whole(each) for each in numbers.split()]
        points = list(zip(values[::2], values[1::2], strict=True))
        if command == "z":
            if at == begin and words[-1][0] in "lhv":
                words.pop()  # to close the part leads there as well
            words.append("z")
        elif command == "M":
            words.append(_joined("M", [each for point in points for each in point]))
            begin = points[-1]
        else:
            words.append(_step(command, [(x - at[0], y - at[1]) for x, y in points]))
        at = points[-1] if points else begin
    return "".join(words)


def _step(command: str, steps: list[tuple[int, int]]) -> str:
    (x, y), *more = steps
    if command == "L" and not more and y == 0:
        return _joined("h", [x])
    if command == "L" and not more and x == 0:
        return _joined("v", [y])
    return _joined(command.lower(), [each for step in steps for each in step])


def _joined(command: str, values: list[int]) -> str:
    return command + "".join(f" {each}" if each[0] != "-" else each for each in map(_shown, values)).lstrip()


def _whole(number: str) -> int:
    return round(float(number) * _UNIT)


def _shown(value: int) -> str:
    text = f"{value / _UNIT:.{_DIGITS}f}".rstrip("0").rstrip(".")
    return re.sub(r"^(-?)0\.", r"\1.", text)


def _each_number(found: re.Match[str]) -> str:
    return re.sub(r"-?\d+\.\d+", lambda number: _shown(_whole(number[0])), found[0])


def _with_classes(text: str) -> str:
    """Gives each style that occurs more than once a class, whose name follows from it."""
    counts = Counter(map(_style_of, _STYLED.finditer(text)))
    names = {style: f"s{sha1(style.encode()).hexdigest()[:6]}" for style, count in counts.items() if count > 1}

    def named(found: re.Match[str]) -> str:
        style = _style_of(found)
        return f' class="{names[style]}"' if style in names else f' style="{style}"'

    rules = "".join(f".{name}{{{style}}}\n" for style, name in names.items())
    return _STYLED.sub(named, text).replace("</style>", f"{rules}</style>", 1)


def _style_of(found: re.Match[str]) -> str:
    clipped = f"{found['style']}; clip-path: {found['clip']}" if found["clip"] else found["style"]
    return clipped.replace(": ", ":").replace("; ", ";")


def _without_repeated_classes(text: str) -> str:
    """Leaves out the class of what is used again where it has that class itself."""
    for name, own in re.findall(r'<path id="([^"]*)"[^>]* class="(\w+)"/>', text):
        text = re.sub(rf'(<use xlink:href="#{name}"[^>]*) class="{own}"/>', r"\1/>", text)
    return text


def _in_groups(text: str) -> str:
    """Gives neighbors of the same class a group that has it, and passes its style on."""
    styles = dict(re.findall(r"(?m)^\.(\w+)\{(.*)\}$", text))

    def grouped(found: re.Match[str]) -> str:
        if _APART.search(styles[found[1]]):
            return found[0]
        given = f' class="{found[1]}"'
        return f"<g{given}>\n{found[0].replace(given, '')}</g>\n"

    for pattern in _IN_A_ROW:
        text = pattern.sub(grouped, text)
    return text
