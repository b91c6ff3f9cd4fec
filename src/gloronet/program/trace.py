"""trace(module, input_shape) → Program: reads off what a module really computes.

torch.export runs the module once with a symbolic batch and records every operation, hooks, patched
methods and hand-written `forward`s included. Nodes that do not depend on the input are kept as
recipes for named tensors (so a parametrised weight is just a tensor); the others become operators by
the rules, and an operation without one stops the trace.

A module's rule stands for the nodes under its path only when its exact type is registered, its class
has not been patched since, it is called with an input and nothing else, and no hook, instance `forward` or
parametrisation is in the way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from gloronet.errors import UnsupportedOperation
from gloronet.operators.affine import Scale, Translate
from gloronet.operators.base import Operator, Shape
from gloronet.operators.rules import (
    CALL_RULES,
    MODULE_RULES,
    Call,
    Constant,
    ModuleRule,
    Step,
    Value,
    Vouched,
    evaluating,
)
from gloronet.program.agree import require_fit, require_same, require_true
from gloronet.program.constants import Constants, Recipe, Ref
from gloronet.program.graph import (
    attribute,
    clean,
    describe,
    field_of,
    has_clean_rule,
    is_mutable,
    is_sequence,
    needed,
    path_of,
    same_size,
    submodule,
)
from gloronet.program.merge import merge
from gloronet.program.program import INPUT, Op, Program
from gloronet.program.structure import plain


def trace(module: nn.Module, input_shape: Shape) -> Program:
    """The Program of `module` in eval mode, on batches of `input_shape`.

    Raises UnsupportedOperation, naming the place and the remedy, for whatever no rule bounds.
    """
    shape = tuple(input_shape)
    if hasattr(module, "_orig_mod"):
        raise UnsupportedOperation(
            f"This is torch.compile's wrapper of {type(module._orig_mod).__name__}. Wrap the module itself; "
            "net.module.compile() then compiles it in place."
        )
    program = _Reader(module, shape, *_export(module, shape)).read()
    require_true(module, program)  # a real run, too: torch.export takes back what it changes
    require_same(module, program, _Reader(module, shape, *_export(module, shape, alone=True)).read())
    return program


def _export(
    module: nn.Module, input_shape: Shape, alone: bool = False
) -> tuple[torch.export.ExportedProgram, set[nn.Module]]:
    """The graph on a batch of any size from two on, or on a sample `alone`; and what `_told_more` gathers."""
    sample = _sample(module, input_shape, 1 if alone else 3)
    sizes = None if alone else ({0: torch.export.Dim("batch", min=2)},)
    with (
        evaluating(module), _left_alone(module), _told_more(module) as told_more,
        warnings.catch_warnings(), torch.no_grad(),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        try:
            exported = torch.export.export(module, (sample,), dynamic_shapes=sizes, strict=False)
            if any(is_mutable(node) for node in exported.graph.nodes):
                exported = exported.run_decompositions({})
                for node in exported.graph.nodes:
                    node.meta["functionalised"] = True
        except Exception as e:
            reason = str(e).strip().split("\n")[0]
            raise UnsupportedOperation(
                f"{type(module).__name__} cannot be traced on a batch of shape {input_shape}: {reason} "
                "Its forward must treat every sample alike, without branching on values."
            ) from e
    changed = {**exported.graph_signature.buffers_to_mutate, **exported.graph_signature.user_inputs_to_mutate}
    if changed:
        names = ", ".join(sorted(changed.values()))
        raise UnsupportedOperation(f"The module changes {names} while it runs, even in eval mode.")
    return exported, told_more


@contextlib.contextmanager
def _told_more(module: nn.Module) -> Iterator[set[nn.Module]]:
    """Gathers modules with a rule that are called with more than an input: of the rest their rule knows nothing."""
    found: set[nn.Module] = set()

    def look(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [*args, *kwargs.values()]
        if len(given) != 1 or not isinstance(given[0], Tensor):
            found.add(called)

    known = [m for m in module.modules() if type(m) in MODULE_RULES]
    hooks = [m.register_forward_pre_hook(look, prepend=True, with_kwargs=True) for m in known]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _left_alone(module: nn.Module) -> Iterator[None]:
    """Gives every attribute the very object back that it was: torch.export leaves copies of containers behind."""
    before = [(vars(m), dict(vars(m))) for m in module.modules()]
    try:
        yield
    finally:
        for now, was in before:
            now.update({name: value for name, value in was.items() if name in now and now[name] is not value})


def _sample(module: nn.Module, input_shape: Shape, batch: int) -> Tensor:
    like = next((t for t in module.parameters()), next(module.buffers(), torch.zeros(0)))
    return torch.zeros(batch, *input_shape, dtype=like.dtype, device=like.device)


_SYMBOL = object()
"""Stands for a number that depends on the size of the batch."""


class _Reader:
    """Walks the exported graph once, front to back, turning nodes into operations and recipes."""

    def __init__(
        self,
        module: nn.Module,
        input_shape: Shape,
        exported: torch.export.ExportedProgram,
        told_more: set[nn.Module],
    ) -> None:
        self.module = module
        self.input_shape = input_shape
        self.told_more = told_more
        self.signature = exported.graph_signature
        self.lifted = exported.constants
        self.nodes = needed(list(exported.graph.nodes))
        # Making a graph functional moves nodes between modules' paths: then no module rule is safe.
        self.module_rules = not any("functionalised" in n.meta for n in self.nodes)
        self.constants = Constants(module)
        self.known: dict[torch.fx.Node, Value | Constant | Any] = {}
        self.ops: list[Op] = []
        self.answers: list[Callable[[], bool]] = []
        self.batch: Any = None

    def read(self) -> Program:
        result: Any = None
        done: set[torch.fx.Node] = set()
        for node in self.nodes:
            if node in done:
                continue
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "output":
                result = node.args[0]
            elif not isinstance(node.meta.get("val"), Tensor) and not is_sequence(node):
                self.known[node] = _SYMBOL  # sizes of the batch and assertions about them
            elif not any(isinstance(self.known.get(a), Value) for a in node.all_input_nodes):
                self._recipe(node)
            elif node.target is operator.getitem:
                self._first(node)
            elif node.target in _BATCH_NORMS:
                self._batch_norm(node)
            else:
                group = self._module_group(node)
                if group is not None:
                    done.update(group)
                else:
                    self._call(node)
        return self._program(result)

    def _program(self, result: Any) -> Program:
        outputs = [self.known.get(n) for n in result] if isinstance(result, tuple | list) else []
        if len(outputs) != 1 or not isinstance(outputs[0], Value):
            raise UnsupportedOperation(
                "The network must answer one tensor that depends on its input: the logits."
            )
        ops = merge(self.ops, outputs[0].name)
        self.constants.prune({name for op in ops for name in op.tensors.values()})
        return Program(self.input_shape, tuple(ops), self.constants, tuple(self.answers))

    # Leaves

    def _placeholder(self, node: torch.fx.Node) -> None:
        s = self.signature
        path = s.inputs_to_parameters.get(node.name) or s.inputs_to_buffers.get(node.name)
        value = node.meta["val"]
        if path is not None:
            self.constants.parameters[node.name] = path
            self._constant(node, path)
        elif node.name in s.inputs_to_lifted_tensor_constants:
            name = s.inputs_to_lifted_tensor_constants[node.name]
            self.constants.fixed[node.name] = self.lifted[name].detach()  # live, as all others
            self._constant(node, name)
        else:
            self.batch = value.shape[0]
            self.known[node] = Value(INPUT, self.input_shape)

    def _constant(self, node: torch.fx.Node, name: str) -> None:
        self.known[node] = Constant(self._named(name, node.name), tuple(node.meta["val"].shape))

    def _named(self, name: str, inner: str) -> str:
        """The Program's name for a tensor of the graph: `name`, marked where another bears it already.

        A parameter may be called `add`, as an operation is, and a rule may make a `weight` of its own.
        """
        while self.constants.used.setdefault(name, inner) != inner:
            name += "′"
        return name

    def _recipe(self, node: torch.fx.Node) -> None:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise UnsupportedOperation(
                f"{describe(node, self.module)} draws random numbers: no bound holds for it."
            )
        if not callable(node.target) or any(self.known.get(a) is _SYMBOL for a in node.all_input_nodes):
            raise self._refusal(node, "it depends on the size of the batch")
        convert = {a: Ref(a.name) for a in node.all_input_nodes}
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), convert.__getitem__)
        self.constants.recipes.append(Recipe(node.name, node.target, args, kwargs))
        if isinstance(node.meta.get("val"), Tensor):
            self._constant(node, f"{path_of(node)}.{node.name}".lstrip("."))
        else:
            self.known[node] = Constant(node.name, ())

    # Operations on the input

    def _call(self, node: torch.fx.Node) -> None:
        handler = CALL_RULES.get(node.target)
        if handler is None:
            raise self._refusal(node)
        step = handler(Call(self._arguments(node), self._shape(node)))
        if isinstance(step, str):
            raise self._refusal(node, step)
        self._append(node, node, step)

    def _arguments(self, node: torch.fx.Node) -> dict[str, Any]:
        """The call's arguments by name, with what is known in place of nodes."""
        arguments: dict[str, Any] = {}
        for k, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
            otherwise = node.kwargs.get(argument.name, argument.default_value)
            value = node.args[k] if k < len(node.args) else otherwise
            arguments[argument.name] = torch.fx.node.map_arg(value, self.known.__getitem__)
        return arguments

    def _batch_norm(self, node: torch.fx.Node) -> None:
        """(x − mean)·gain + bias with gain = weight/√(var + eps): running statistics, three operations.

        torch computes x·gain + (bias − mean·gain) in one go; eight roundings an operation cover either order.
        """
        a = self._arguments(node)
        x, statistics = a["input"], {k: a[k] for k in ("weight", "bias", "running_mean", "running_var")}
        if a.get("training", False) or statistics["running_mean"] is None:
            raise self._refusal(
                node, "it uses the statistics of the batch; call eval(), and track running ones"
            )
        if any(isinstance(value, Value) for value in statistics.values()):
            raise self._refusal(node, "its statistics depend on the input")
        shape = (-1, *[1] * (len(x.shape) - 1))
        names = {k: Ref(self.constants.used[c.name]) for k, c in statistics.items() if c is not None}
        wide = {"mean": names["running_mean"], "bias": names.get("bias")}
        made = {"gain": Recipe("", _gain, (names["running_var"], names.get("weight"), a["eps"], shape), {})}
        made |= {k: Recipe("", torch.reshape, (ref, shape), {}) for k, ref in wide.items() if ref is not None}
        steps: list[tuple[type[Operator], str, str, dict[str, Any]]] = [
            (Translate, "offset", "mean", {"subtract": True}),
            (Scale, "factor", "gain", {}),
            (Translate, "offset", "bias", {}),
        ]
        steps = [step for step in steps if step[2] in made]
        for k, (kind, field, which, attributes) in enumerate(steps):
            inner = f"{node.name}:{which}"
            self.constants.recipes.append(made[which]._replace(name=inner))
            name = self._named(f"{path_of(node)}.{node.name}.{which}".lstrip("."), inner)
            output = node.name if k == len(steps) - 1 else f"{node.name}_{which}"
            attributes = attributes | {"roundings": 8}
            self.ops.append(Op(path_of(node), kind, x.shape, (x.name,), output, {field: name}, attributes))
            x = Value(output, x.shape)
        self.known[node] = x

    def _first(self, node: torch.fx.Node) -> None:
        """Item 0 of an operation that answers several tensors, where that is known."""
        source, index = node.args
        if index != 0 or not isinstance(self.known.get(source), Value):  # type: ignore[arg-type]
            raise self._refusal(node)
        self.known[node] = self.known[source]  # type: ignore[index]

    def _module_group(self, node: torch.fx.Node) -> list[torch.fx.Node] | None:
        """The nodes that a module's own rule stands for, starting at this one; None without such a rule."""
        if not self.module_rules:
            return None
        for key, (path, _) in node.meta.get("nn_module_stack", {}).items():
            module = submodule(self.module, path)
            if module is None or module in self.told_more or not has_clean_rule(module):
                continue
            group = [n for n in self.nodes if key in n.meta.get("nn_module_stack", {})]
            members = set(group)
            inputs = {
                a
                for n in group
                for a in n.all_input_nodes
                if a not in members and not isinstance(self.known.get(a), Constant)
            }
            outside = set(self.nodes) - members
            outputs = [n for n in group if any(user in outside for user in n.users)]
            if len(inputs) != 1 or len(outputs) != 1:
                return None
            x = self.known[inputs.pop()]
            if not isinstance(x, Value):
                return None
            self._append(outputs[0], node, self._module_step(module, x, clean(path), outputs[0]))
            return group
        return None

    def _module_step(self, module: nn.Module, x: Value, path: str, output: torch.fx.Node) -> Step:
        rule = MODULE_RULES[type(module)].rule
        output_shape = self._shape(output)
        answer = rule(module, x.shape, "l2")
        if not isinstance(answer, Operator):
            require_fit(module, None, x.shape, path)
            # Every name: those of one tensor may come apart.
            state = {**dict(module.named_parameters(remove_duplicate=False)),
                     **dict(module.named_buffers(remove_duplicate=False))}  # fmt: skip
            tensors: dict[str, Constant | float] = {}
            for name, t in state.items():
                full, inner = f"{path}.{name}".lstrip("."), f"{output.name}:{name}"
                if full not in self.constants.parameters.values():
                    self.constants.sources[inner] = partial(attribute, module, name)
                    full = self._named(full, inner)
                tensors[name] = Constant(full, tuple(t.shape))
            return Step(Vouched, (x,), tensors, {"module": module, "constant": rule})
        if answer.output_shape != output_shape:
            raise UnsupportedOperation(
                f"The rule for {type(module).__name__} at {path} answered an operator onto {answer.output_shape}, "
                f"but the module answers {output_shape}."
            )
        require_fit(module, answer, x.shape, path)
        fields = {
            f.name: getattr(answer, f.name) for f in dataclasses.fields(answer) if f.name != "input_shape"
        }
        tensors = {}
        for f, value in fields.items():
            if isinstance(value, Tensor):
                inner = f"{output.name}:{f}"
                self.constants.sources[inner] = partial(field_of, rule, module, x.shape, f)
                tensors[f] = Constant(self._named(f"{path}.{f}".lstrip("."), inner), tuple(value.shape))
        attributes = {f: v for f, v in fields.items() if not isinstance(v, Tensor) and v is not None}
        if next(module.parameters(), next(module.buffers(), None)) is not None:  # on which attributes may depend
            self.answers.append(partial(_answers, rule, module, x.shape, type(answer), _untensored(answer)))
        return Step(type(answer), (x,), tensors, attributes)

    def _append(self, node: torch.fx.Node, first: torch.fx.Node, step: Step) -> None:
        tensors = {}
        for f, constant in step.tensors.items():
            if not isinstance(constant, Constant):
                constant = self._number(node, constant)
            tensors[f] = constant.name
        shape = step.inputs[0].shape
        inputs = tuple(v.name for v in step.inputs)
        self.ops.append(Op(path_of(first), step.operator, shape, inputs, node.name, tensors, step.attributes))
        self.known[node] = Value(node.name, self._shape(node))

    def _number(self, node: torch.fx.Node, number: Any) -> Constant:
        """A Python number as torch computes with it: in the tensor's own type, but in float32 beside half precision."""
        if not isinstance(number, int | float):
            raise self._refusal(node, "it depends on the size of the batch")
        inner, dtype = f"{node.name}:number", node.meta["val"].dtype
        dtype = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        self.constants.fixed[inner] = torch.tensor(number, dtype=dtype)
        return Constant(self._named(f"{path_of(node)}.{node.name}.constant".lstrip("."), inner), ())

    def _shape(self, node: torch.fx.Node) -> Shape:
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or not value.shape or not same_size(value.shape[0], self.batch):
            raise self._refusal(node, "it mixes the samples of a batch")
        if not all(isinstance(n, int) for n in value.shape[1:]):
            raise self._refusal(node, "its size depends on the batch")
        if not value.is_floating_point():
            raise self._refusal(node, "it turns the input into whole numbers")
        return tuple(value.shape[1:])

    def _refusal(self, node: torch.fx.Node, reason: str | None = None) -> UnsupportedOperation:
        what = describe(node, self.module)
        if reason is not None:
            return UnsupportedOperation(f"No bound for {what}: {reason}.")
        module = submodule(self.module, path_of(node))
        if module in self.told_more:
            remedy = "Its own rule does not apply: it is called with more than an input."
        elif module is not None and not list(module.children()) and module is not self.module:
            name = type(module).__name__
            prefix = "nn." if type(module).__module__.startswith("torch.nn.") else ""
            remedy = f"Register one with @gn.rule({prefix}{name}), or use MinMax."
        else:
            remedy = (
                "Put it into a module of its own with @gn.rule, or write it with operations that have one."
            )
        hint = "" if self.module_rules else " (Rules of modules do not apply beside in-place operations.)"
        return UnsupportedOperation(f"No bound rule for {what}. {remedy}{hint}")


_BATCH_NORMS = (
    torch.ops.aten.batch_norm.default,
    torch.ops.aten._native_batch_norm_legit_no_training.default,
)


def _untensored(answer: Operator) -> dict[str, Any]:
    """The operator's fields, a tensor by its type alone: what becomes part of the Program."""
    fields = {f.name: getattr(answer, f.name) for f in dataclasses.fields(answer)}
    return {f: type(v) if isinstance(v, Tensor) else v for f, v in fields.items()}


@torch.no_grad()
def _answers(rule: ModuleRule, module: nn.Module, shape: Shape, kind: type[Operator], told: dict[str, Any]) -> bool:
    """Whether the rule still answers an operator of that kind, with those fields."""
    answer = rule(module, shape, "l2")
    return type(answer) is kind and plain(_untensored(answer)) == plain(told)


def _gain(variance: Tensor, weight: Tensor | None, eps: float, shape: Shape) -> Tensor:
    gain = torch.rsqrt(variance + eps)
    return (gain if weight is None else gain * weight).reshape(shape)
