"""torch's compiler comes when something is compiled, and not before."""

import sys
from types import SimpleNamespace

import pytest
from support.processes import python

from pipetrain.data.libraries import lazy_compiler

NAME = "torch._dynamo"


@pytest.fixture
def lazy(monkeypatch):
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    lazy_compiler.install()
    yield sys.modules[NAME]
    monkeypatch.undo()


@pytest.fixture
def compiler(monkeypatch):
    real = SimpleNamespace(config="the settings", disable=lambda *given, **named: (given, named))
    monkeypatch.setattr(lazy_compiler.importlib, "import_module", lambda _name: real)
    return real


def function():
    pass


def test_function_of_torch_is_left_alone_without_the_compiler(lazy):
    assert lazy.disable(function, wrapping=False) is function
    assert lazy.graph_break() is None
    assert sys.modules[NAME] is lazy


@pytest.mark.usefixtures("compiler")
def test_compiler_hears_of_functions_once_it_comes(lazy):
    function.__dynamo_disable = lazy.disable(function, wrapping=False)
    assert lazy.config == "the settings"
    assert not hasattr(function, "__dynamo_disable")  # torch asks again
    assert sys.modules.get(NAME) is not lazy


@pytest.mark.usefixtures("compiler")
def test_compiler_is_told_what_a_user_wants_left_alone(lazy):
    assert lazy.disable(function, recursive=False) == ((function,), {"recursive": False})
    assert lazy.disable() == ((), {})


def test_look_at_all_modules_imports_nothing(lazy):
    assert [hasattr(lazy, name) for name in ("__all__", "__wrapped__", "__warningregistry__")] == [False] * 3
    assert lazy.__spec__.name == NAME
    assert sys.modules[NAME] is lazy


def test_compiler_that_is_there_stays(monkeypatch):
    monkeypatch.setitem(sys.modules, NAME, real := SimpleNamespace())
    lazy_compiler.install()
    assert sys.modules[NAME] is real


COMPILES = """\
import sys, torch
from pipetrain.data.libraries import lazy_compiler
lazy_compiler.install()
stand_in = sys.modules["torch._dynamo"]
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(layer.parameters())
layer(torch.ones(1, 2)).sum().backward()
optimizer.step()
assert sys.modules["torch._dynamo"] is stand_in
inputs = torch.ones(1, 2)
assert torch.equal(torch.compile(layer, backend="eager")(inputs), layer(inputs))
assert sys.modules["torch._dynamo"] is torch._dynamo is not stand_in
assert stand_in.trace_rules.torch_name_rule_map == torch._dynamo.trace_rules.torch_name_rule_map
optimizer.zero_grad()
layer(inputs).sum().backward()
optimizer.step()
"""


@pytest.mark.slow
def test_layer_compiles_after_optimizer_without_compiler():
    done = python(COMPILES)
    assert done.returncode == 0, done.stderr
