"""The tests of the engine and the loader need torch, numpy and the tools of tests alone (`make test-engine`)."""

import ast
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
NEEDED = {"torch", "numpy", "typing_extensions", "pytest", "hypothesis"}


def imports(tree):
    """Dotted names of what a module imports, also inside functions; `from a import b` may name a module a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(name):
    """The files of this repository that hold a module, without those of the package."""
    parts = name.split(".")
    if parts[0] == "support":
        places = [TESTS.joinpath(*parts[:k]) for k in (2, 3)]
        return [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()]
    return [file for file in [TESTS.parent / "benchmarks" / f"{parts[0]}.py"] if file.exists()]


def test_tests_of_the_engine_and_the_loader_import_neither_the_other_rooms_nor_what_they_need():
    conftest = ast.parse((TESTS / "conftest.py").read_text())
    conftest.body = [node for node in conftest.body if not isinstance(node, ast.FunctionDef)]  # fixtures of runs
    waiting, wrong = [TESTS / "conftest.py"], []
    waiting += [file for room in ("engine", "data") for file in (TESTS / room).rglob("*.py")]
    assert len(waiting) > 50
    for file in waiting:  # which grows
        tree = conftest if file.name == "conftest.py" else ast.parse(file.read_text())
        for name in imports(tree):
            top = name.partition(".")[0]
            if top in ("support", "process_tree"):
                waiting += [each for each in files_of(name) if each not in waiting]
            elif top == "pipetrain":
                alone = name == top or name.startswith(("pipetrain.engine.", "pipetrain.data."))
                wrong += [] if alone else [(file.name, name)]
            elif top not in NEEDED | sys.stdlib_module_names:
                wrong.append((file.name, name))
    assert wrong == []
