"""GloRoNet: a classifier that answers with a proof, or with ⊥.

    net = GloRoNet(module, epsilon=36/255, input_shape=(3, 32, 32))
    net(x)            # logits and ⊥: train() with estimates, eval() with the bound
    net.certify(x)    # label, radius, certified: proved, in float64

The wrapped module stays an ordinary module: `net.module`. What it computes is traced into a Program;
the bound is computed once for that Program and its tensors, and again when any of them changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from gloronet.config import FORMS, NORMS, parse_epsilon
from gloronet.errors import ConfigError, GloroError
from gloronet.margins import bottom_logit, lead_down, pairwise_margins, radius_down
from gloronet.operators.rounding import U32, U64, as_written, norms_up, require_gradual_underflow
from gloronet.operators.rules import evaluating
from gloronet.program import (
    Bound,
    FrozenProgram,
    Program,
    SplitEstimate,
    advance,
    bound,
    estimate,
    head,
    settle,
    trace,
)
from gloronet.program.bound import ChainBound, steps
from gloronet.program.error import LARGEST, LogitError, SampleError, logit_error, require_stated, sample_error
from gloronet.program.structure import structure

BOTTOM = -1
"""The prediction of a net that abstains."""

SEMANTICS = ("real", "float32")


@dataclass(frozen=True)
class Certificates:
    """What is proved about a batch: ‖x′ − x‖ < radius ⇒ the net answers `label` at x′.

    `semantics` says which arithmetic the claim is about; `"real"` is the exact function of the stored
    weights. certified ⇔ radius > epsilon.
    """

    label: Tensor
    radius: Tensor
    margin: Tensor
    """The least lead of the label over another class, after what rounding may have added."""
    epsilon: float
    semantics: str

    @property
    def certified(self) -> Tensor:
        return self.radius > self.epsilon

    @property
    def prediction(self) -> Tensor:
        """The label where it is certified at ε, BOTTOM elsewhere."""
        return torch.where(self.certified, self.label, BOTTOM)


@dataclass(frozen=True)
class LayerRow:
    """One line of `explain`: an estimate and a bound never share a column."""

    name: str
    rule: str
    method: str
    estimate: float
    bound: float


def explained(
    layers: Sequence[LayerRow], chains: Sequence[ChainBound], constant: float, largest: float, form: str, norm: str
) -> str:
    """A table of the layers, which of them costs the most, and the constants they make."""
    worst = max(layers[:-1], key=lambda layer: layer.bound, default=None)
    lines = [f"{'layer':<16} {'rule':<10} {'estimate':>12} {'bound':>12}  how"]
    for row in layers:
        mark = "  <- costs the most" if row is worst and row.bound > 1 else ""
        name = row.name or "(top)"
        lines.append(f"{name:<16} {row.rule:<10} {row.estimate:>12.6f} {row.bound:>12.6f}  {row.method}{mark}")
    for chain in chains:
        apart = math.prod(layer.bound for layer in layers[chain.first : chain.last + 1])
        names = f"{layers[chain.first].name} to {layers[chain.last].name}"
        lines.append(f"{names} as one operator: {chain.value:.6f} ({chain.method}) for {apart:.6f}")
    lines.append(
        f"K up to the last hidden layer: {constant:.6f}; largest margin constant: {largest:.6f} ({form} form, {norm})"
    )
    return "\n".join(lines)


class GloRoNet(nn.Module):
    """Wraps `module`, whose last operation is linear, so that it certifies its answers at `epsilon`."""

    def __init__(
        self,
        module: nn.Module,
        epsilon: float | str,
        input_shape: tuple[int, ...],
        form: str = "margin",
        norm: str = "l2",
        power_iterations: int = 5,
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ConfigError(f"GloRoNet wraps an nn.Module, not {type(module).__name__}.")
        if form not in FORMS or norm not in NORMS:
            raise ConfigError(
                f"form must be one of {FORMS} and norm one of {NORMS}, not {form!r} and {norm!r}."
            )
        if power_iterations < 1:
            raise ConfigError(f"power_iterations must be at least 1, not {power_iterations!r}.")
        _require_readable(module)
        self.module = module
        self.epsilon = parse_epsilon(epsilon)
        self.input_shape = tuple(input_shape)
        self.form = form
        self.norm = norm
        self.power_iterations = power_iterations
        self._traced: tuple[Any, Program] | None = None
        self._proved: _Proof | None = None
        if self.classes < 2:
            raise ConfigError(f"The network has {self.classes} output; certifying needs two classes or more.")

    # What the network is

    @as_written
    def program(self) -> Program:
        """What the module computes in eval mode, traced again when its structure changed."""
        now = (self.input_shape, structure(self.module))
        if self._traced is None or self._traced[0] != now or not self._traced[1].holds():
            with self._unrounded():
                program = trace(self.module, self.input_shape)
            head(program)
            self._register_iterates(program)
            self._traced = (now, program)
        return self._traced[1]

    @property
    def classes(self) -> int:
        program = self.program()
        return int(program.live()[head(program).tensors["weight"]].shape[0])

    def hidden_weights(self) -> list[Tensor]:
        """The weights of dense and convolutional layers before the head, less those added to their own input."""
        program = self.program()
        tensors = program.live()
        layers = (op for op in program.ops[:-1] if "weight" in op.tensors and not op.attributes.get("skip"))
        return [tensors[op.tensors["weight"]] for op in layers]

    # What it answers

    def logits(self, x: Tensor) -> Tensor:
        """(B, m): the wrapped network's own outputs, which attacks and plain accuracy use."""
        self._check(x)
        return self.module(x)

    def forward(self, x: Tensor) -> Tensor:
        """(B, m + 1): the logits and, last, ⊥.

        In `train()` ⊥ is made with estimates and is differentiable. In `eval()` it is made with the bound
        and with what rounding in the logits' arithmetic may hide, so that "not ⊥" means certified.
        """
        if self.training:
            y = self.logits(x)
            bottom = bottom_logit(y, self.lipschitz_estimate(), self.epsilon)
            return torch.cat([y, bottom[:, None].to(y.dtype)], 1)
        return self._answer(x)

    @as_written
    def _answer(self, x: Tensor) -> Tensor:
        """The logits of the module's own operations, also where it was compiled, and ⊥ by the bound."""
        eager = torch.compiler.set_stance("force_eager")
        with torch.autocast(x.device.type, enabled=False), evaluating(self.module), eager:
            y = self.logits(x)
        bottom = self._proved_bottom(x, y)
        unusable = ~torch.isfinite(y).all(1, keepdim=True)
        return torch.cat([y.masked_fill(unusable, -torch.inf), bottom[:, None]], 1)

    @as_written
    def lipschitz_estimate(self, iterations: int | None = None) -> Tensor:
        """m×m margins from below, differentiable. In `train()` the power iterates advance; `eval()` mutates nothing.

        `iterations` of power iteration come first (default: `power_iterations`); 0 takes the iterates as they are.
        """
        count = self.power_iterations if iterations is None else iterations
        if self.training and count:
            self.advance(count)
            count = 0
        program = self.program()
        # Copies: the iterates may go on before this estimate's gradient is taken, which needs them as they are.
        iterates = {name: u.clone() for name, u in self._iterates(program).items()}
        with self._unrounded():
            constant, weight = estimate(program, iterates, count, self.norm)
            return pairwise_margins(constant, weight, self.form, self.norm)

    @torch.no_grad()
    def settled_estimate(self, tolerance: float = 1e-5, most: int = 10_000) -> tuple[Tensor, int]:
        """(m×m margins from below, power iterations the slowest layer took); mutates nothing.

        Each layer's iteration goes on from its kept iterate until σ changes by at most tolerance·σ in a step.
        """
        program = self.program()
        with self._unrounded():
            iterates, count = settle(program, self._iterates(program), tolerance, most, self.norm)
            constant, weight = estimate(program, iterates, 0, self.norm)
            return pairwise_margins(constant, weight, self.form, self.norm), count

    def split_estimate(self) -> SplitEstimate:
        """The estimate in parts, which a training step runs beside its other work: margins = K·`distances`."""
        program = self.program()
        return SplitEstimate(program, self._iterates(program), self.norm)

    def distances(self, weight: Tensor) -> Tensor:
        """m×m margins of a net with this head and K = 1; differentiable."""
        return pairwise_margins(1.0, weight, self.form, self.norm)

    @torch.no_grad()
    def advance(self, iterations: int | None = None) -> None:
        """Moves the kept power iterates on: what makes the next estimate tighter. No gradient flows through it."""
        program = self.program()
        count = self.power_iterations if iterations is None else iterations
        with self._unrounded():
            for name, u in advance(program, self._iterates(program), count, self.norm).items():
                getattr(self, _buffer(name)).copy_(u)

    def bound(self, progress: Callable[[str], None] | None = None, known: Bound | None = None) -> Bound:
        """Margins from above, proved in outward-rounded float64: the only thing that certifies.

        `known`, a bound kept from before, is taken when its digest says it is about this very Program.
        """
        return self._proof(progress, known).bound

    @as_written
    @torch.no_grad()
    def certify(
        self,
        x: Tensor,
        epsilon: float | str | None = None,
        semantics: str = "real",
        per_sample: bool = False,
    ) -> Certificates:
        """Labels with proved radii, from an evaluation in float64 less its own rounding error.

        `"real"`: about the exact function of the stored weights. `"float32"`: about the float32 network as it
        runs on a CPU, at every x′ of the ball: what its own rounding can do there, δ(x) + slope·r, is taken off
        as well; `per_sample` bounds it entry by entry instead of through norms, for a second forward pass.
        """
        self._check_semantics(semantics)
        self._check(x)
        eps = self.epsilon if epsilon is None else parse_epsilon(epsilon)
        with torch.autocast(x.device.type, enabled=False):
            centre = self._proof().at(x, semantics, per_sample)
            label = centre.logits.argmax(1)
            lead, margins = centre.leads(label)
        radius, least = radius_down(lead, margins, label)
        sound, limit = centre.scope()
        sound &= torch.isfinite(least)
        radius = torch.where(sound, torch.minimum(radius, limit), 0.0)
        return Certificates(label, radius, torch.where(sound, least, -torch.inf), eps, semantics)

    def layers(self, iterations: int = 200) -> list[LayerRow]:
        """Each operation with its estimate from below and its bound from above, in order."""
        proved = self.bound()
        program = self.program()
        rows = []
        for operator, layer in zip(program.operators(), proved.layers, strict=True):
            start = operator.start()
            like = next(iter(program.live().values()))
            with torch.no_grad():
                u = None if start is None else start.to(like.device, like.dtype)
                sigma, _ = operator.estimate(u, iterations, self.norm)
            rows.append(LayerRow(layer.name, layer.rule, layer.method, float(sigma), layer.value))
        return rows

    def explain(self) -> str:
        """A table: each layer's rule, estimate and bound, and which layer costs the most."""
        proved = self.bound()
        return explained(
            self.layers(), proved.chains, proved.constant, float(proved.margins.max()), self.form, self.norm
        )

    # How

    def __getstate__(self) -> dict[str, Any]:
        """For a copy: without what was traced and proved, which is about this module and not the copy's."""
        return super().__getstate__() | {"_traced": None, "_proved": None}

    def speaks_of(self, semantics: str) -> bool:
        """Whether this net can be certified under these semantics."""
        try:
            self._check_semantics(semantics)
        except GloroError:
            return False
        return True

    @as_written
    def _proof(self, progress: Callable[[str], None] | None = None, known: Bound | None = None) -> _Proof:
        require_gradual_underflow()
        _require_own_weights(self.module)
        program = self.program()
        kept, about = self._proved, (self.form, self.norm)
        with self._unrounded(), torch.no_grad():
            current = program.live()
            if kept is None or not kept.holds(program, current, about):
                frozen = program.freeze()
                fits = known is not None and (known.digest, known.form, known.norm) == (frozen.digest, *about)
                if known is None or not fits or frozen.opaque:
                    known = bound(frozen, self.form, self.norm, progress)
                self._proved = kept = _Proof(program, frozen, known)
        return kept

    def _proved_bottom(self, x: Tensor, y: Tensor) -> Tensor:
        proof = self._proof()
        y64 = y.detach().double()
        label = y64.argmax(1)
        size, unit = norms_up(x.flatten(1)), proof.coarsest(x, y)
        error, _ = proof.error(unit).rows(size, label)
        again, _ = proof.error(U64).rows(size, label)
        margins = proof.bound.margins.to(y.device)[label]
        # `certify` evaluates anew, in float64: that may be off by δ, and δ is taken off. So twice δ more.
        above = self.epsilon * margins + error + 2.0 * again
        raised = y64 + above + (y64.abs() + above) * (16.0 * U64)
        own = torch.arange(y.shape[1], device=y.device) == label[:, None]
        bottom = raised.masked_fill(own, -torch.inf).amax(1)
        bottom = torch.where(torch.isfinite(y64).all(1), bottom, torch.inf)
        sure, top = proof.reach(unit, size) > 0, y64.amax(1)
        if x.device.type != "cpu" or any(op.kind.elementary for op in proof.traced.ops):
            # No error is stated for these logits (TF32, Winograd, tanh): the verdict is that of float64.
            agreed = self._certified_as(x, label, torch.ones_like(sure))
            sure = agreed
        else:
            # In a deep net ‖x‖ alone says too little of float32: where only its rounding is in doubt, ask float64.
            ahead = top > (y64 + self.epsilon * margins).masked_fill(own, -torch.inf).amax(1)
            agreed = self._certified_as(x, label, ahead & ~(sure & (top > bottom)) & (unit <= U32))
            sure = sure | agreed
        bottom = torch.where(agreed, torch.minimum(bottom, top - top.abs() * 1e-3 - 1e-30), bottom)
        bottom = torch.where(sure, bottom, torch.inf)
        # Up, past what rounding the sum and the conversion can hide; two steps so that a tie is ⊥'s.
        rounded = (bottom + bottom.abs() * (8.0 * U64)).to(y.dtype)
        infinity = torch.full_like(rounded, torch.inf)
        return torch.nextafter(torch.nextafter(rounded, infinity), infinity).nan_to_num(torch.inf, torch.inf)

    def _certified_as(self, x: Tensor, label: Tensor, asked: Tensor) -> Tensor:
        """Which of the samples asked about are certified with that label, by their own evaluation in float64."""
        agreed = torch.zeros_like(asked)
        if asked.any():
            c = self.certify(x[asked])
            agreed[asked] = c.certified & (c.label == label[asked])
        return agreed

    def _unrounded(self) -> torch.autocast:
        """Autocast switched off where the tensors are: constants and bounds must not see them in bf16."""
        like = next(self.parameters(), next(self.buffers(), torch.zeros(0)))
        return torch.autocast(like.device.type, enabled=False)

    @torch.inference_mode(False)
    def _register_iterates(self, program: Program) -> None:
        """A buffer for each operation that iterates; one that fits is kept."""
        for op, operator in steps(program, program.operators()):
            start = operator.start()
            kept = getattr(self, _buffer(op.output), None)
            if start is not None and (kept is None or kept.shape != start.shape):
                like = next(iter(program.live().values()))
                self.register_buffer(_buffer(op.output), start.to(like.device, like.dtype))

    def _iterates(self, program: Program) -> dict[str, Tensor]:
        buffers = dict(self.named_buffers(recurse=False))
        return {op.output: buffers[_buffer(op.output)] for op in program.ops if _buffer(op.output) in buffers}

    def _check_semantics(self, semantics: str) -> None:
        if semantics not in SEMANTICS:
            raise ConfigError(f"semantics must be one of {', '.join(SEMANTICS)}, not {semantics!r}.")
        if semantics == "float32" and self.norm != "l2":
            raise ConfigError('semantics "float32" is for norm "l2"; ℓ∞ comes in "real" only.')
        if semantics == "float32":
            require_stated(self.program())
            tensors = self.program().live().values()
            if any(t.dtype != torch.float32 for t in tensors if t.is_floating_point()):
                raise ConfigError('semantics "float32" speaks about a float32 module; this one holds other tensors.')

    def _check(self, x: Tensor) -> None:
        if not x.is_floating_point():
            raise ConfigError(f"The net takes floats, not {x.dtype}; turn pixels into [0, 1] with gn.data.to_unit.")
        if tuple(x.shape[1:]) != self.input_shape:
            raise ConfigError(
                f"The net takes batches of shape (B, {', '.join(map(str, self.input_shape))}), not {tuple(x.shape)}."
            )


class _Proof:
    """A frozen Program with its bound and, by unit roundoff, what evaluating it can lose."""

    def __init__(self, traced: Program, program: FrozenProgram, bound: Bound) -> None:
        self.traced = traced
        self.program = program
        self.bound = bound
        self._errors: dict[float, LogitError] = {}

    def holds(self, program: Program, tensors: dict[str, Tensor], about: tuple[str, str]) -> bool:
        """Whether it is a proof for this trace, these tensors and this form and norm."""
        same = self.traced is program and (self.bound.form, self.bound.norm) == about
        return same and self.program.same_tensors(tensors)

    def coarsest(self, x: Tensor, y: Tensor) -> float:
        """The unit roundoff of the coarsest arithmetic the module itself may compute in."""
        floats = [t for t in (x, y, *self.program.tensors.values()) if t.is_floating_point()]
        return max(torch.finfo(t.dtype).eps for t in floats) / 2

    def error(self, unit: float) -> LogitError:
        if unit not in self._errors:
            self._errors[unit] = logit_error(self.program, self.bound, unit)
        return self._errors[unit]

    def at(self, x: Tensor, semantics: str, per_sample: bool) -> _Centre:
        """x evaluated in float64, for claims about what is near it."""
        single = self.float32(x, per_sample) if semantics == "float32" else None
        return _Centre(self, norms_up(x.flatten(1)), self.program(x) if single is None else single.logits, single)

    def float32(self, x: Tensor, close: bool) -> SampleError:
        """The logits at x in float64, and what the float32 net can lose near x."""
        return sample_error(self.program, self.bound, self.error(U64), x, U32, close)

    def reach(self, unit: float, size: Tensor) -> Tensor:
        """How far from an x of this norm no sum can overflow; 0 at x itself, as a ReLU may hide an infinity."""
        peak = self.error(unit).peak
        return ((LARGEST.get(unit, 0.0) - peak.constant) / peak.slope - size).clamp(min=0.0)


class _Centre(NamedTuple):
    """The logits at x, and what may be claimed about every x′ near it."""

    proof: _Proof
    size: Tensor
    logits: Tensor
    single: SampleError | None
    """What the float32 net can lose near x; None where the claims are about the exact function."""

    def leads(self, label: Tensor) -> tuple[Tensor, Tensor]:
        """Two (B, m): the leads of `label` from below and K from above. Nearer than lead/K no class overtakes it.

        For `"float32"` that is where float32 could first see it overtaken.
        """
        lost, _ = self.proof.error(U64).rows(self.size, label)
        lead = lead_down(self.logits, label, lost)
        margins = self.proof.bound.margins.to(lead.device)[label]
        if self.single is None:
            return lead, margins
        rounded, slope = self.single.rows(label)
        return lead - rounded - lead.abs() * (2.0 * U64), (margins + slope) * (1.0 + 2.0 * U64)

    def scope(self) -> tuple[Tensor, Tensor]:
        """Two (B,): where anything can be claimed (no NaN, infinity or overflow), and how far from x at most."""
        sound = torch.isfinite(self.logits).all(1) & (self.proof.reach(U64, self.size) > 0)
        if self.single is None:
            return sound, torch.full_like(self.size, torch.inf)
        return sound, self.proof.reach(U32, self.size)


def _buffer(output: str) -> str:
    return f"iterate_{output}"


def _require_readable(module: nn.Module) -> None:
    for name, m in module.named_modules():
        what = f"{type(m).__name__} at {name or 'the top'}"
        if isinstance(m, torch.jit.ScriptModule):
            raise ConfigError(f"{what} is TorchScript, which cannot be read; wrap the module it was made from.")
        if any(map(is_lazy, (*m._parameters.values(), *m._buffers.values()))):
            raise ConfigError(f"{what} does not know its size yet; run the module on an input before it is wrapped.")


def _require_own_weights(module: nn.Module) -> None:
    if parametrize._cache_enabled and any(map(parametrize.is_parametrized, module.modules())):
        raise GloroError(
            "Inside torch.nn.utils.parametrize.cached() a module may answer with weights it no longer has: "
            "prove and certify outside of that block."
        )
