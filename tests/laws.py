"""The laws, each written once. Give an operator or a net, and every one of them is put to it.

    check_operator(op, norm)        an operator against its own matrix, its estimates, and pairs of points
    check_arithmetic(op, x)         what an evaluation loses, against exact fractions
    check_program(module, shape)    a traced Program against the module it was read from
    check_net(net, x)               a net against its Jacobians, attacks, ⊥ and its own certificates

Exact rational arithmetic (`fractions`) decides wherever it is affordable; elsewhere float64 with a
tolerance far below the slack of any bound.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

import gloronet as gn
from gloronet.operators import (
    Abs,
    AvgPool2d,
    Conv2d,
    Dense,
    LinearOperator,
    MinMax,
    Operator,
    ReLU,
    Scale,
    Translate,
)
from gloronet.operators.rounding import U32, U64, gamma
from gloronet.program.program import run

NOISE = 1e-12
"""Relative rounding of the float64 references below (SVD, ratios, Jacobians)."""
TIGHT = 1e-6
"""A checked Cholesky bound is no further above the truth, relatively."""


# --- operators ---


def check_operator(op: Operator, norm: str = "l2", seed: int = 0) -> None:
    """Shape, adjoint, bound ≥ truth, bound ≥ every estimate, bound ≥ every ratio, tightness."""
    generator = torch.Generator().manual_seed(seed)
    check_shape(op)
    bound = op.bound(norm)
    assert bound.value >= 0.0
    if isinstance(op, LinearOperator):
        check_adjoint(op, generator)
        matrix = dense(op)
        truth = matrix_norm(matrix, norm)
        assert bound.value >= truth * (1.0 - NOISE), (bound, truth)
        if bound.method == "checked Cholesky" and norm == "l2":
            assert bound.value <= truth * (1.0 + TIGHT), (bound, truth)
        check_estimates(op, norm, matrix, bound.value, generator)
    if not (isinstance(op, Dense | Conv2d) and math.isinf(bound.value)):
        check_ratios(op, norm, bound.value, generator)


def check_shape(op: Operator) -> None:
    x = torch.zeros(2, *op.input_shape, dtype=torch.float64)
    assert op(x).shape == (2, *op.output_shape)


def check_adjoint(op: LinearOperator, generator: torch.Generator) -> None:
    """⟨Ax, y⟩ = ⟨x, Aᵀy⟩."""
    x, y = normal(3, *op.input_shape, generator=generator), normal(3, *op.output_shape, generator=generator)
    left, right = (op.apply(x) * y).flatten(1).sum(1), (x * op.adjoint(y)).flatten(1).sum(1)
    # The larger of the two sides' own sizes: Ax may cancel to almost nothing where Aᵀy does not.
    one, other = op.apply(x).flatten(1).norm(dim=1) * y.flatten(1).norm(dim=1), op.adjoint(y).flatten(1).norm(dim=1)
    scale = torch.maximum(one, other * x.flatten(1).norm(dim=1))
    assert op.adjoint(y).shape == x.shape
    assert ((left - right).abs() <= NOISE * scale).all()


def check_estimates(
    op: LinearOperator, norm: str, matrix: Tensor, bound: float, generator: torch.Generator
) -> None:
    """No estimate exceeds the bound, whatever its start: random, all ones, the least singular direction."""
    starts = [normal(1, *op.input_shape, generator=generator), torch.ones(1, *op.input_shape).double()]
    if torch.isfinite(matrix).all() and 0 < matrix.numel() <= 10_000:
        starts.append(torch.linalg.svd(matrix)[2][-1].reshape(1, *op.input_shape))
    for start in starts:
        for iterations in (1, 5, 50):
            sigma, _ = op.estimate(start / start.norm(), iterations, norm)
            assert float(sigma) <= bound * (1.0 + NOISE)


def check_ratios(op: Operator, norm: str, bound: float, generator: torch.Generator) -> None:
    """‖f(x) − f(y)‖ ≤ K‖x − y‖ for random pairs, near pairs, and pairs that climb the ratio."""
    x, y = (normal(64, *op.input_shape, generator=generator) for _ in range(2))
    for a, b in ((x, y), (x, x + 1e-3 * y), (x, -x), (x, torch.zeros_like(x))):
        assert not overtaken(op, a, b, norm, bound).any()
    if not isinstance(op, LinearOperator):
        a, b = x[:8].clone().requires_grad_(), y[:8].clone().requires_grad_()
        climber = torch.optim.Adam([a, b], lr=0.1)
        for _ in range(40):
            assert not overtaken(op, a.detach(), b.detach(), norm, bound).any()
            climber.zero_grad()
            (size(op(b) - op(a), norm) / size(b - a, norm).clamp_min(1e-30)).sum().neg().backward()
            climber.step()


def check_powers_of_two(op: Operator, field: str = "weight", norm: str = "l2") -> None:
    """Weights times 2ᵏ: exactly 2ᵏ times the bound, as far as nothing underflows or overflows."""
    bound = op.bound(norm).value
    for k in (-300, -7, -1, 1, 2, 60, 300):
        scaled = replace(op, **{field: getattr(op, field).double() * 2.0**k})  # type: ignore[type-var]
        assert scaled.bound(norm).value == math.ldexp(bound, k), k


def check_arithmetic(op: Operator, x: Tensor) -> None:
    """‖computed − exact‖ ≤ γ_terms(u)·(gain·‖x‖ + offset), against fractions, in the type of x."""
    unit = {torch.float32: U32, torch.float64: U64}[x.dtype]
    loss = op.arithmetic()
    for sample, computed in zip(x, op(x), strict=True):
        wanted = exact_value(op, sample)
        off = sum((Fraction(c) - w) ** 2 for c, w in zip(flat(computed), wanted, strict=True))
        length = root_up(sum(Fraction(v) ** 2 for v in flat(sample)))
        assert (
            off
            <= (Fraction(gamma(loss.terms, unit)) * (Fraction(loss.gain) * length + Fraction(loss.offset)))
            ** 2
        )


def overtaken(op: Operator, x: Tensor, y: Tensor, norm: str, bound: float) -> Tensor:
    """Where ‖f(x) − f(y)‖ > K‖x − y‖ by more than float64 can make up."""
    fx, fy = op(x), op(y)
    noise = size(fx, norm) + size(fy, norm) + bound * (size(x, norm) + size(y, norm))
    return size(fx - fy, norm) > bound * size(x - y, norm) + NOISE * noise


def size(x: Tensor, norm: str) -> Tensor:
    return torch.linalg.vector_norm(x.flatten(1), math.inf if norm == "linf" else 2, dim=1)


def dense(op: LinearOperator) -> Tensor:
    """The operator's matrix in float64, column by column."""
    n = math.prod(op.input_shape)
    return op.apply(torch.eye(n, dtype=torch.float64).reshape(n, *op.input_shape)).flatten(1).T


def matrix_norm(matrix: Tensor, norm: str) -> float:
    if norm == "linf":
        return float(matrix.abs().sum(1).max())
    largest = float(matrix.abs().max())
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    exponent = math.frexp(largest)[1]  # LAPACK squares: keep it away from both ends
    half = exponent // 2
    return math.ldexp(
        float(torch.linalg.matrix_norm(matrix * 2.0**-half * 2.0 ** (half - exponent), 2)), exponent
    )


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# --- exact arithmetic ---


def exactly_bounded(bound: float, matrix: Tensor) -> bool:
    """Whether ‖A‖₂ ≤ bound, decided exactly: bound²·I − AᵀA is positive semidefinite, over the rationals."""
    rows = [[Fraction(v) for v in row] for row in matrix.double().tolist()]
    if len(rows) < len(rows[0]):
        rows = [list(column) for column in zip(*rows, strict=True)]
    n, square = len(rows[0]), Fraction(bound) ** 2
    gram = [[sum(r[i] * r[j] for r in rows) for j in range(n)] for i in range(n)]
    return _semidefinite([[(square if i == j else 0) - gram[i][j] for j in range(n)] for i in range(n)])


def _semidefinite(a: list[list[Fraction]]) -> bool:
    for k in range(len(a)):
        if a[k][k] < 0 or (a[k][k] == 0 and any(a[k][k + 1 :])):
            return False
        for i in range(k + 1, len(a)):
            if a[i][k]:
                factor = a[i][k] / a[k][k]
                a[i] = [v - factor * w for v, w in zip(a[i], a[k], strict=True)]
    return True


def exact_value(op: Operator, x: Tensor) -> list[Fraction]:
    """f(x) for one sample, without rounding."""
    values = [Fraction(v) for v in flat(x)]
    if isinstance(op, Scale | Translate):
        name = "factor" if isinstance(op, Scale) else "offset"
        others = [
            Fraction(v) for v in flat(torch.broadcast_to(getattr(op, name).double(), (1, *op.input_shape)))
        ]
        pairs = zip(values, others, strict=True)
        if isinstance(op, Scale):
            return [a / b if op.divide else a * b for a, b in pairs]
        return [a - b if op.subtract else a + b for a, b in pairs]
    assert isinstance(op, Dense | Conv2d | AvgPool2d)
    result = [sum(a * v for a, v in zip(row, values, strict=True) if a) for row in exact_matrix(op)]
    if not isinstance(op, AvgPool2d) and op.bias is not None:
        places = math.prod(op.output_shape[1:])
        result = [
            y + Fraction(b)
            for y, b in zip(result, op.bias.double().repeat_interleave(places).tolist(), strict=True)
        ]
    return result


def exact_matrix(op: Dense | Conv2d | AvgPool2d) -> list[list[Fraction]]:
    """The matrix of a linear operator without rounding: `skip` and the mean's divisor enter as fractions."""
    if isinstance(op, AvgPool2d):
        share = Fraction(1, op.kernel[0] * op.kernel[1])
        return [[share if v else Fraction(0) for v in row] for row in dense(op).tolist()]
    plain = replace(op, weight=op.weight.double(), bias=None, skip=False)
    matrix = [[Fraction(v) for v in row] for row in dense(plain).tolist()]  # one product a column: exact
    if op.skip:
        for i, row in enumerate(matrix):
            row[i] += 1
    return matrix


def root_up(square: Fraction) -> Fraction:
    """At least √square, and hardly more."""
    scale = 4**80
    return Fraction(math.isqrt(square.numerator * scale // square.denominator) + 1, 2**80)


def flat(x: Tensor) -> list[float]:
    return x.detach().double().flatten().tolist()


def exact_logits(program: gn.program.FrozenProgram, x: list[Fraction]) -> list[Fraction]:
    """A Program of dense layers and activations that select, at one sample, without rounding."""
    values = {"input": x}
    result: list[Fraction] = []
    for op, operator in zip(program.ops, program.operators, strict=True):
        incoming = [values[name] for name in op.inputs]
        if isinstance(operator, ReLU):
            result = [max(v, Fraction(0)) for v in incoming[0]]
        elif isinstance(operator, Abs):
            result = [abs(v) for v in incoming[0]]
        elif isinstance(operator, MinMax):
            half = len(incoming[0]) // 2
            pairs = list(zip(incoming[0][:half], incoming[0][half:], strict=True))
            result = [max(p) for p in pairs] + [min(p) for p in pairs]
        else:
            assert isinstance(operator, Dense), operator
            matrix = [[Fraction(v) for v in row] for row in operator.weight.tolist()]
            bias = (
                [Fraction(0)] * len(matrix)
                if operator.bias is None
                else map(Fraction, operator.bias.tolist())
            )
            result = [
                sum((w * v for w, v in zip(row, incoming[0], strict=True)), b)
                for row, b in zip(matrix, bias, strict=True)
            ]
        values[op.output] = result
    return result


# --- Programs and nets ---


def check_program(module: torch.nn.Module, shape: tuple[int, ...], seed: int = 0) -> gn.Program:
    """The Program computes what the module computes: in the module's own type, and all in float64."""
    module = copy.deepcopy(module).eval()
    program = gn.trace(module, shape)
    like = next(module.parameters())
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(seed)).to(like.dtype)
    with torch.no_grad():
        mine, its = program.freeze()(x), module(x.clone()).double()
        assert torch.allclose(mine, its, 1e-3, 1e-4 * float(its.abs().max()))
        twice = module.double()
        mine, its = gn.trace(twice, shape).freeze()(x), twice(x.double())
    assert torch.allclose(mine, its, 1e-11, 1e-12 * float(its.abs().max()))
    return program


def check_net(net: gn.GloRoNet, x: Tensor) -> gn.Certificates:
    """Every law a net must obey, at the points x. Returns their certificates."""
    net.eval()
    check_jacobians(net, x)
    check_bottom(net, x)
    check_eval_changes_nothing(net, x)
    certificates = net.certify(x)
    check_attack(net, x, certificates)
    check_disjoint(x, certificates, net.norm)
    check_gradients(net, x)
    return certificates


def check_jacobians(net: gn.GloRoNet, x: Tensor) -> None:
    """‖∇(y_j − y_i)(x)‖ in the dual norm never exceeds margins[i, j]."""
    margins = net.bound().margins
    program = net.program().freeze()
    points = x.double().clone().requires_grad_()
    with torch.enable_grad():
        y = run(program.ops, program.operators, points)
        rows = [
            torch.autograd.grad(y[:, c].sum(), points, retain_graph=True)[0].flatten(1)
            for c in range(y.shape[1])
        ]
    order = 1 if net.norm == "linf" else 2
    for i in range(len(rows)):
        for j in range(len(rows)):
            steep = torch.linalg.vector_norm(rows[j] - rows[i], order, dim=1)
            assert (steep <= margins[i, j] * (1.0 + NOISE)).all(), (i, j)


def check_bottom(net: gn.GloRoNet, x: Tensor) -> None:
    """Whatever `net(x)` does not answer with ⊥ in eval() is certified, with the same label."""
    with torch.no_grad():
        answer = net(x).argmax(1)
    certificates = net.certify(x)
    told = answer < net.classes
    assert certificates.certified[told].all()
    assert torch.equal(certificates.label[told], answer[told])


def check_eval_changes_nothing(net: gn.GloRoNet, x: Tensor) -> None:
    before = {name: t.clone() for name, t in net.state_dict().items()}
    with torch.no_grad():
        net(x)
    net.certify(x), net.bound(), net.lipschitz_estimate(), net.explain()
    after = net.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def check_attack(net: gn.GloRoNet, x: Tensor, c: gn.Certificates, **settings: int) -> None:
    """No attack within a certified radius changes the label."""
    use = (c.radius > 0) & torch.isfinite(c.radius)
    if not bool(use.any()):
        return
    radius = c.radius[use] * (1.0 - 1e-6)
    if net.norm == "linf":
        assert not corner_attack(net, x[use], c.label[use], radius).any()
        return
    settings = {"steps": 20, "restarts": 2} | settings
    generator = torch.Generator().manual_seed(0)
    attack = gn.attacks.pgd(
        net.logits, x[use], c.label[use], radius, clip=None, generator=generator, **settings
    )
    assert (attack.distance <= radius * (1.0 + 1e-12)).all()
    assert not attack.success.any()


def corner_attack(net: gn.GloRoNet, x: Tensor, label: Tensor, radius: Tensor) -> Tensor:
    """Which samples change their label at a corner of the ℓ∞ ball that signed gradients lead to."""
    broken = torch.zeros(len(x), dtype=torch.bool)
    reach = radius.reshape(-1, *[1] * (x.dim() - 1)).to(x.dtype)
    for rival in range(net.classes):
        point = x
        for _ in range(5):
            point = point.detach().requires_grad_()
            with torch.enable_grad():
                y = net.logits(point)
                gap = (y[:, rival] - y.gather(1, label[:, None])[:, 0]).sum()
            (gradient,) = torch.autograd.grad(gap, point)
            point = x + reach * gradient.sign()
            broken |= net.logits(point).argmax(1) != label
    return broken


def check_disjoint(x: Tensor, c: gn.Certificates, norm: str = "l2") -> None:
    """Different labels with radii r₁, r₂ are at least r₁ + r₂ apart."""
    points, radius = x.double().flatten(1), c.radius.clamp(max=1e300)
    gap = torch.cdist(points, points, p=math.inf if norm == "linf" else 2.0)
    different = c.label[:, None] != c.label[None, :]
    far = gap * (1.0 + NOISE) + 1e-7 >= radius[:, None] + radius[None, :]  # cdist goes through squares
    either = (radius[:, None] > 0) & (radius[None, :] > 0)
    assert far[different & either].all()


def check_gradients(net: gn.GloRoNet, x: Tensor) -> None:
    """In train() the m + 1 outputs are differentiable, ⊥ too, and every weight gets a finite gradient."""
    before = {name: t.clone() for name, t in net.state_dict().items()}
    weights = [p for p in net.parameters() if p.requires_grad]
    net.train()
    try:
        outputs = net(x)
        bottom = torch.autograd.grad(outputs[:, -1].sum(), weights, allow_unused=True)
        assert outputs.shape == (len(x), net.classes + 1)
        for p, g in zip(weights, bottom, strict=True):
            assert g is not None or p.dim() == 1  # ⊥ does not depend on a bias that shifts all logits alike
            assert g is None or torch.isfinite(g).all()
    finally:
        net.eval()
        net.load_state_dict(before)
