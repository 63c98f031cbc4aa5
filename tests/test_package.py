"""The names that the package offers at its root."""

import ast
from pathlib import Path

import pytest
from support.processes import python

import pipetrain


@pytest.mark.parametrize("name", pipetrain.__all__)
def test_every_name_of_the_package_is_found_where_it_is_defined(name):
    assert name in dir(pipetrain)
    assert getattr(pipetrain, name).__module__.startswith("pipetrain") if name != "__version__" else True


def test_asserts_only_look():
    """Under `python -O` they are not carried out."""
    looking = {"isinstance", "len", "all", "any", "set"}
    for file in Path(pipetrain.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert):
                calls = [each for each in ast.walk(node.test) if isinstance(each, ast.Call | ast.NamedExpr | ast.Await)]
                assert all(getattr(getattr(each, "func", None), "id", "") in looking for each in calls), (
                    f"{file}:{node.lineno} calls something"
                )


def test_unknown_package_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pipetrain.nothing  # noqa: B018


def test_importing_the_package_imports_no_torch():
    check = "import pipetrain, sys; sys.exit('torch' in sys.modules)"
    done = python(check)
    assert done.returncode == 0, done.stderr
