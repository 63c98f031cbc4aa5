"""`pipetrain new`: writes a package with a method, schedule, model or data set of the user's own, and its test."""

import argparse
import re
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from string import Template

import pipetrain
from pipetrain.commands import Subparsers
from pipetrain.commands.output_folder import check_writable
from pipetrain.errors import ConfigError, ExitCode

_TRIED_WITH = {
    "method": "model=lenet5 partition.stages=3",
    "schedule": "method=gpipe model=lenet5 partition.stages=3 train.microbatches=4",
    "model": "method=pipedream partition.stages=3",
    "dataset": "method=pipedream model=lenet5 partition.stages=3",
}
"""Kind -> the settings with which its README tries one."""
_TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"(?!(null|true|false|nan|inf)$)[a-z][a-z0-9]*(_[a-z0-9]+)*")
"""Valid in a name of a package, of a module and of a class; the words in front are values in Hydra's grammar."""
_DESCRIPTION = """\
Writes a small package with a working method, schedule, model or data set to start from, its settings, and a test that
compares it with a reference. Once the package is installed, KIND=NAME chooses it, like those that pipetrain brings."""
_EPILOG = """\
For example: pipetrain new method lookahead
             pip install -e pipetrain-lookahead
             pipetrain run method=lookahead model=lenet5"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `new`."""
    parser = subparsers.add_parser(
        "new", help="write a package with a method, schedule, model or data set of your own",
        description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("kind", choices=list(_TRIED_WITH), metavar="KIND", help=", ".join(_TRIED_WITH))
    parser.add_argument("name", metavar="NAME", help="what KIND=NAME shall choose, such as lookahead")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="new folder; default pipetrain-NAME")
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Writes the package, and prints what to do with it.

    Raises:
        ConfigError: the name cannot be used, or the folder exists.
    """
    kind, name = options.kind, options.name.replace("-", "_")
    words = {
        "kind": kind,
        "name": name,
        "Class": "".join(part.capitalize() for part in name.split("_")),
        "module": f"pipetrain_{name}",
        "package": f"pipetrain-{name.replace('_', '-')}",
        "run": f"pipetrain run {kind}={name} {_TRIED_WITH[kind]}",
    }
    if problem := _problem(words):
        raise ConfigError(f"pipetrain new {kind} {options.name}: {problem}")
    output: Path = options.output or Path(words["package"])
    if output.exists():
        raise ConfigError(f"-o {output}: exists; name a new folder")
    check_writable(f"-o {output}", output)
    source = f"src/{words['module']}"
    files = {
        "README.md": "README.md",
        "pyproject.toml": "pyproject.toml",
        f"{source}/__init__.py": f"{kind}/code.py",
        f"{source}/conf/{kind}/{name}.yaml": f"{kind}/choice.yaml",
        f"tests/test_{name}.py": f"{kind}/test.py",
    }
    for file, template in files.items():
        (output / file).parent.mkdir(parents=True, exist_ok=True)
        text = (_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
        (output / file).write_text(Template(text).substitute(words), encoding="utf-8")
    print(f"written to {output}: {', '.join(files)}")
    folder = shlex.quote(str(output))
    print(f"next: pip install -e {folder}", words["run"], f"pytest {folder}", sep="\n      ")
    return ExitCode.COMPLETED


def _problem(words: Mapping[str, str]) -> str | None:
    """Reason for which the name cannot be used; None if it can."""
    from pipetrain.config.choices import all_names

    kind, name = words["kind"], words["name"]
    if not _NAME.fullmatch(name):
        return "a name is needed that begins with a letter and has lower-case letters, digits and _ only, as my_idea"
    if name in all_names(kind):
        return f"{kind}={name} exists already; choose another name"
    if words["Class"] in pipetrain.__all__:
        return f"pipetrain.{words['Class']} is another class; choose another name"
    if find_spec(words["module"]):
        return f"a package {words['module']} is installed already; choose another name"
    return None
