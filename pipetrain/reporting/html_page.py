"""The frame of all pages: title, common style sheet and body, in one file that needs no network."""

from html import escape
from string import Template

from pipetrain.runner.terminal.style import page_style

_FRAME = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
$style
</style>
</head>
<body>
<h1>$title</h1>
$body</body>
</html>
""")


def html_page(title: str, body: str, rules: str = "") -> str:
    """The document.

    Args:
        title: as plain text.
        body: HTML elements that follow the title.
        rules: CSS rules besides the common ones.
    """
    style = "\n".join(filter(None, [page_style(), rules.rstrip()]))
    return _FRAME.substitute(title=escape(title), style=style, body=body)
