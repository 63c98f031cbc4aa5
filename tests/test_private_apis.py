"""The private APIs that pipetrain uses, and the behavior that it relies on.

Last checked with Python 3.11.7, torch 2.13.0, Hydra 1.3.8, joblib 1.6.0 and tensorboard 2.21.0. If a test fails on a
newer version, look at the code that uses the API before allowing that version.
"""

import argparse
import ast
import copy
import functools
import importlib
import multiprocessing
import os
import subprocess
import sys
from importlib.util import find_spec
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.autograd.graph import _engine_run_backward, get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import pipetrain
from pipetrain.commands.run import sweep
from pipetrain.engine.weights import buffer_pool

PACKAGE = Path(pipetrain.__file__).parent
APIS = {
    # torch
    "_storage_Use_Count": "which memory of weights is free (weights)",
    "_C": "torch's namespace of _storage_Use_Count",
    "_autograd": "torch's namespace of _top_saved_tensors_default_hooks",
    "_top_saved_tensors_default_hooks": "calls inside a layer that checkpoints itself",
    "_engine_run_backward": "torch.autograd.grad and backward without their checks",
    "_compiled_call_impl": "layers that the user compiled in place",
    "_cdata": "the identity of a storage",
    "_version": "changes in place",
    "_is_view": "the tensor that a saved cast of a weight is a view of",
    "_base": "the same",
    "_foreach_*": "one call for all weights",
    "_functorch": "tensors inside torch.vmap and other transforms",
    "_neg_view": "a saved view of a weight again, of another version",
    "_cudnn_rnn_flatten_weight": "the copy that cuDNN packs of a recurrent layer's weights",
    "_flat_weights": "the list that a recurrent layer keeps of its weights",
    "_flat_weights_names": "the same",
    "_flat_weight_refs": "the same",
    "_parameters": "computing with other weights than a module's own",
    "_buffers": "the same for buffers",
    "_modules": "a module's children, those that are None included",
    "_backward_hooks": "hooks of a weight's gradient, which a stage would not call",
    "_post_accumulate_grad_hooks": "the same",
    "_forward_hooks": "hooks of an nn.Sequential, which its layers by themselves would not call",
    "_forward_pre_hooks": "the same",
    "_non_persistent_buffers_set": "which buffers checkpoints leave out",
    "_orig_mod": "modules that the user compiled",
    "_enabled": "a region of autocast in a recorded forward",
    "_enter_autocast": "the same region in a layer",
    "_exit_autocast": "the same",
    "_subclasses": "tensors without data, for recording (FakeTensorMode)",
    "_python_dispatch": "operations below autograd and autocast (TorchDispatchMode)",
    "_to_copy": "the operation that casts",
    "_overloadpacket": "the operation of an overload",
    "_pytree": "tensors in nested arguments",
    "_BatchNorm": "layers that cannot train on one sample",
    "_NormBase": "layers with running statistics",
    "_shutdown_workers": "the end of the processes that read samples",
    "_dynamo": "the compiler's limits, and its stand-in",
    "_inductor": "the compiler's processes and determinism",
    "_get_init_p2p_neighbors_ops": "torch's pipelines over Gloo",
    "_get_file_writer": "hyperparameters in the same file of TensorBoard",
    # Python
    "_getframe": "the line of the user's code (documented for CPython)",
    "_exit": "documented",
    "_asdict": "documented",
    "_replace": "documented",
    "_forkserver": "the process that forks workers",
    "_forkserver_pid": "the same",
    "_csv": "a type",
    "_ActionsContainer": "a type",
    "_SubParsersAction": "which of a parser's actions are subcommands",
    "_actions": "the options of a parser, for completion",
    # Hydra
    "_internal": "Hydra's basic sweeper, by path",
    "_query": "Hydra's own completion of a line",
    "_target_": "documented",
}


# -- nothing else is used ---------------------------------------------------------------------------------------------


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined(tree):
    """Private names that a file defines itself."""
    nodes = list(ast.walk(tree))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return names | {
        node.attr for node in stored if is_private(node.attr) and ast.unparse(node.value) in ("self", "cls")
    }


def used(tree, everywhere):
    """Private names of others, with their lines. `everywhere`: the names that any file defines for itself."""
    here = defined(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            own = everywhere if ast.unparse(node.value) in ("self", "cls", "super()") else here
            if node.attr not in own:
                yield node.attr, node.lineno
        elif isinstance(node, ast.Import | ast.ImportFrom) and "pipetrain" not in (getattr(node, "module", "") or ""):
            paths = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            yield from ((part, node.lineno) for path in paths for part in path.split(".") if is_private(part))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            parts = node.value.split(".")
            if all(part.isidentifier() for part in parts) and parts[0] in ("torch", "hydra", "hydra_plugins"):
                yield from ((part, node.lineno) for part in parts if is_private(part))


def test_no_other_private_api_is_used():
    trees = {file: ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")}
    everywhere = set().union(*map(defined, trees.values()))
    listed = {*APIS, "_foreach_*"}
    others = [
        f"{file.relative_to(PACKAGE)}:{line}: {name}"
        for file, tree in trees.items()
        for name, line in used(tree, everywhere)
        if ("_foreach_*" if name.startswith("_foreach_") else name) not in listed
    ]
    assert others == []


def test_check_sees_attributes_imports_and_paths_in_strings():
    code = "import torch._a\nfrom b._c import _d\ne._f\nself._g\nself._mine = 1\nother._mine\nx = 'torch._h.i'"
    assert {name for name, _ in used(ast.parse(code), {"_mine"})} == {"_a", "_c", "_d", "_f", "_g", "_h"}


# -- memory and versions of tensors -----------------------------------------------------------------------------------


def test_every_reader_of_memory_is_counted(monkeypatch):
    buffer_pool.check_use_count()
    monkeypatch.setattr(buffer_pool, "_use_count", lambda _storage: buffer_pool._UNSHARED)
    with pytest.raises(RuntimeError, match=rf"torch {torch.__version__.partition('+')[0]}.*a view"):
        buffer_pool.check_use_count()


def test_storage_of_a_view_has_the_identity_of_its_base():
    x = torch.ones(3)
    assert x.untyped_storage()._cdata == x[1:].untyped_storage()._cdata == x.detach().untyped_storage()._cdata
    assert x.untyped_storage()._cdata != x.clone().untyped_storage()._cdata


def test_weak_storage_reference_expires_with_last_tensor():
    x = torch.ones(3)
    view, ref = x[1:], StorageWeakRef(x.untyped_storage())
    assert ref.cdata == x.untyped_storage()._cdata
    del x
    assert not ref.expired()
    del view
    assert ref.expired()


def test_in_place_change_raises_version_of_all_views():
    x = torch.ones(3)
    view, detached, before = x[1:], x.detach(), x._version
    x.add_(1)
    assert view._version == detached._version == x._version == before + 1
    assert x.data._version == 0


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "sqrt", "norm", "addcmul", "clamp_min_", "copy_", "mul_"])
def test_operations_on_lists_have_the_bits_of_single_ones(name):
    torch.manual_seed(0)
    lists = [[torch.rand(n) for n in (3, 70)] for _ in range(3)]
    rest = {"sqrt": 0, "norm": 0, "addcmul": 2}.get(name, 1)
    arguments = [0.5] if name in ("clamp_min_", "mul_") else lists[1 : 1 + rest]
    one = getattr(torch, name, None) or getattr(torch.Tensor, name)
    columns = [part if isinstance(part, list) else [part] * 2 for part in (copy.deepcopy(lists[0]), *arguments)]
    expected = [one(*given) for given in zip(*columns, strict=True)]
    found = getattr(torch, f"_foreach_{name}")(lists[0], *arguments)
    found = lists[0] if name.endswith("_") else found
    assert all(map(torch.equal, found, expected))


def test_negative_view_shares_memory():
    x = torch.ones(2)
    view = torch._neg_view(x)
    assert view.is_neg()
    assert view.data_ptr() == x.data_ptr()
    assert view.tolist() == [-1, -1]


# -- modules ----------------------------------------------------------------------------------------------------------


def test_module_computes_with_what_its_registries_hold():
    layer = nn.BatchNorm1d(2).eval()
    layer.register_buffer("extra", torch.ones(1), persistent=False)
    layer._parameters["weight"] = torch.full((2,), 3.0)  # not a Parameter, which an attribute would have to be
    layer._buffers["running_mean"] = torch.ones(2)
    torch.testing.assert_close(layer(torch.ones(1, 2) * 2), torch.full((1, 2), 3.0), rtol=1e-4, atol=1e-4)
    assert layer._non_persistent_buffers_set == {"extra"}
    assert nn.Sequential(layer)._modules == {"0": layer}
    assert list(nn.Module().__dict__["_modules"]) == []


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layer_computes_with_its_list_of_weights(kind):
    layer, other, x = kind(2, 3), kind(2, 3), torch.randn(4, 1, 2)
    names = layer._flat_weights_names
    assert names == [name for name, _ in layer.named_parameters()]
    assert [ref() for ref in layer._flat_weight_refs] == layer._flat_weights == list(layer.parameters())
    layer._flat_weights = [getattr(other, name) for name in names]
    assert torch.equal(layer(x)[0], other(x)[0])


def test_copy_that_cudnn_packs_takes_these_arguments():
    schema = torch.ops.aten._cudnn_rnn_flatten_weight.default._schema
    assert [argument.name for argument in schema.arguments] == [
        "weight_arr", "weight_stride0", "input_size", "mode", "hidden_size", "proj_size", "num_layers", "batch_first",
        "bidirectional",
    ]  # fmt: skip


def test_normalizing_layers_have_one_base():
    from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

    for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm):
        assert issubclass(kind, _BatchNorm)
    assert issubclass(_BatchNorm, _NormBase)
    assert issubclass(nn.InstanceNorm2d, _NormBase)


def test_module_calls_the_forward_among_its_own_attributes():
    layer = nn.Linear(2, 2)
    vars(layer)["forward"] = lambda x: x + 1
    assert layer(torch.zeros(2)).tolist() == [1, 1]
    del vars(layer)["forward"]
    assert layer(torch.zeros(2)).requires_grad


# -- backward ---------------------------------------------------------------------------------------------------------


def test_layer_that_checkpoints_itself_has_hooks_of_saved_tensors():
    def hooks(ignores_tracing=False):  # noqa: FBT002  (torch takes it by position)
        return torch._C._autograd._top_saved_tensors_default_hooks(ignores_tracing)

    found = []
    checkpoint(lambda x: found.append(hooks()) or x * 2, torch.ones(1, requires_grad=True), use_reentrant=False)
    assert found[0] is not None
    assert hooks() is None


@pytest.mark.parametrize("adds", [False, True])
def test_engine_runs_a_backward_from_edges_to_some_leaves(adds):
    layer, x, gradient = nn.Linear(2, 2), torch.ones(3, 2, requires_grad=True), torch.ones(3, 2)
    output = layer(x)
    wanted = torch.autograd.grad(output, layer.weight, gradient, retain_graph=True)
    keeps_graph, creates_graph, allows_unreachable = True, False, True
    found = _engine_run_backward(
        (get_gradient_edge(output),),
        (gradient,),
        keeps_graph,
        creates_graph,
        (layer.weight,),
        allows_unreachable,
        accumulate_grad=adds,
    )
    assert torch.equal(layer.weight.grad if adds else found[0], wanted[0])
    assert x.grad is None
    assert layer.bias.grad is None


# -- recording --------------------------------------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return 2 * x

    @staticmethod
    def backward(_ctx, gradient):
        return 2 * gradient


def test_every_autograd_function_looks_apply_up_in_one_base(monkeypatch):
    base = torch.autograd.Function.__mro__[1]
    bound, seen = Doubled.apply, []
    assert "apply" not in vars(base)
    original = base.__mro__[1].apply.__func__ if hasattr(base.__mro__[1].apply, "__func__") else None
    assert original is None  # of C, which the patch reaches by `super`
    monkeypatch.setattr(
        base,
        "apply",
        classmethod(lambda cls, *args: (seen.append(cls), super(base, cls).apply(*args))[1]),
        raising=False,
    )
    assert bound(torch.ones(1)).item() == 2
    assert seen == [Doubled]


def test_every_call_of_a_module_looks_call_up_in_its_class(monkeypatch):
    seen, call = [], nn.Module.__call__
    monkeypatch.setattr(
        nn.Module, "__call__", lambda module, *args: (seen.append(type(module)), call(module, *args))[1]
    )
    nn.Sequential(nn.ReLU())(torch.ones(1))
    assert seen == [nn.Sequential, nn.ReLU]


def test_region_of_autocast_can_be_entered_by_a_graph():
    region = torch.autocast("cpu", torch.bfloat16)
    assert (region.device, region.fast_dtype, region._enabled) == ("cpu", torch.bfloat16, True)
    entered = torch.amp._enter_autocast("cpu", torch.bfloat16, True, False)  # noqa: FBT003
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    torch.amp._exit_autocast(entered)
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_tensors_without_data_have_shapes():
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        x = mode.from_tensor(torch.ones(5, 3)) @ torch.ones(3, 2)
        assert isinstance(x, FakeTensor)
        assert x.shape == (5, 2)
        with unset_fake_temporarily():
            assert not isinstance(torch.ones(1), FakeTensor)


def test_dispatch_mode_sees_the_casts_of_autocast():
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            functions.append(func)
            return func(*args, **(kwargs or {}))

    functions = []
    with Seen(), torch.autocast("cpu", torch.bfloat16):
        nn.Linear(2, 2)(torch.ones(1, 2))
    assert functions.count(torch.ops.aten._to_copy.default) == 3
    assert torch.ops.aten._to_copy.default._overloadpacket is torch.ops.aten._to_copy


def test_trees_are_of_tuples_lists_and_dicts():
    tree = ([1, 2.0], {"a": (3,)})
    assert tree_leaves(tree) == [1, 2.0, 3]
    assert tree_map_only(int, lambda x: -x, tree) == ([-1, 2.0], {"a": (-3,)})


# -- processes that read samples ------------------------------------------------------------------------------------


def test_reading_ends_for_good_when_it_is_told_to():
    reading = iter(DataLoader(range(3), num_workers=1, persistent_workers=True))
    for _ in range(2):
        reading._shutdown_workers()
    assert not multiprocessing.active_children()


# -- torch's compiler -------------------------------------------------------------------------------------------------

ALONE = """\
import sys, torch
from pipetrain.data.libraries import lazy_compiler
lazy_compiler.install()
stand_in = sys.modules["torch._dynamo"]
for name in ("SGD", "Adam", "AdamW", "NAdam", "RMSprop", "Adagrad"):
    layer = torch.nn.Linear(2, 2)
    optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
assert sys.modules["torch._dynamo"] is stand_in
"""


@pytest.mark.slow
def test_optimizers_and_process_groups_do_without_the_compiler():
    done = subprocess.run([sys.executable, "-c", ALONE], env=os.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_compiler_has_these_settings_and_names_what_it_compiled():
    dynamo, inductor = map(importlib.import_module, ("torch._dynamo.config", "torch._inductor.config"))
    assert isinstance(dynamo.recompile_limit, int)
    assert isinstance(dynamo.accumulated_recompile_limit, int)
    assert isinstance(inductor.compile_threads, int)
    assert isinstance(inductor.deterministic, bool)
    assert "_orig_mod" in torch.compile(nn.ReLU(), backend="eager")._modules


# -- other libraries --------------------------------------------------------------------------------------------------


def test_pipelines_of_torch_begin_with_these_messages():
    from torch.distributed.pipelining import PipelineStage

    assert callable(PipelineStage._get_init_p2p_neighbors_ops)


def test_parser_lists_its_options_and_subcommands():
    parser = argparse.ArgumentParser(add_help=False)
    option = parser.add_argument("--option")
    nested = parser.add_subparsers()
    nested.add_parser("run")
    assert parser._actions == [option, nested]
    assert isinstance(nested, argparse._SubParsersAction)
    assert isinstance(parser.add_argument_group(), argparse._ActionsContainer)
    assert list(nested.choices) == ["run"]


FORKED = """\
import multiprocessing, os
from multiprocessing import forkserver
process = multiprocessing.get_context("forkserver").Process(target=print)
process.start()
process.join()
os.kill(forkserver._forkserver._forkserver_pid, 0)
"""


def test_fork_server_has_a_number():
    assert forkserver._forkserver._forkserver_pid is None or isinstance(forkserver._forkserver._forkserver_pid, int)
    if "forkserver" in multiprocessing.get_all_start_methods():
        subprocess.run([sys.executable, "-c", FORKED], check=True, stdout=subprocess.DEVNULL, timeout=60)


def test_hydra_has_these_parts():
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    assert callable(BasicSweeper)
    assert callable(DefaultCompletionPlugin._query)
    for path in sweep._LOCAL:
        module, _, launcher = path.rpartition(".")
        if find_spec(module.rpartition(".")[0]):
            assert hasattr(importlib.import_module(module), launcher)


def test_tensorboard_takes_a_summary(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tmp_path)
    assert callable(functools.partial(writer._get_file_writer().add_summary))
    writer.close()
