"""Numbers proved from above: the rounding helpers, and ‖A‖₂ by checked Cholesky, against exact fractions."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.laws import exactly_bounded, matrix_norm, root_up

from gloronet.operators import rounding
from gloronet.operators.norms import (
    BandedGram,
    _checked_cholesky,
    dense_bound,
    gram_bound,
    largest_ritz_value,
    mirrored,
)
from gloronet.operators.rounding import TINY, U64
from gloronet.program.bound import prove_margins

positive = st.floats(0, 1e308) | st.floats(0, 1e-307) | st.sampled_from([0.0, TINY, 2.0**-1022, 1.0, 1e308])
entries = st.one_of(
    st.floats(-4, 4),
    st.integers(-3, 3).map(float),
    st.floats(-1e300, 1e300),
    st.floats(-1e-300, 1e-300),
    st.integers(-5, 5).map(lambda k: k * TINY),
)


def matrices(most: int = 4):
    sizes = st.tuples(st.integers(1, most), st.integers(1, most))
    return sizes.flatmap(
        lambda mn: st.lists(st.lists(entries, min_size=mn[1], max_size=mn[1]), min_size=mn[0], max_size=mn[0])
    ).map(lambda rows: torch.tensor(rows, dtype=torch.float64))


def at_least(value: float, exact: Fraction) -> bool:
    return math.isinf(value) or Fraction(value) >= exact


# --- rounding helpers ---


@given(st.lists(positive, min_size=1, max_size=5))
@example([1e308, 1e308])
@example([TINY, 0.5])
@example([1e-200, 1e-200, 1e300])
def test_products_and_sums_are_never_below(factors):
    assert at_least(rounding.product(*factors), math.prod(map(Fraction, factors)))
    assert at_least(rounding.total(*factors), sum(map(Fraction, factors)))
    assert (rounding.product(*factors) == 0.0) == any(f == 0.0 for f in factors)


@given(positive, st.integers(-2200, 2200))
@example(1.5, -1074)
@example(1.0, -3000)
def test_roots_and_powers_of_two_are_never_below(x, k):
    assert Fraction(rounding.root(x)) ** 2 >= Fraction(x)
    result = rounding.ldexp(x, k)
    exact = Fraction(x) * Fraction(2) ** k
    assert at_least(result, exact)
    assert (result == 0.0) == (x == 0.0)
    if Fraction(2) ** -1022 <= exact < Fraction(2) ** 1023:
        assert Fraction(result) == exact


@pytest.mark.parametrize("unit", [2.0**-53, 2.0**-24])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 100, 10**6])
def test_gamma_is_never_below(n, unit):
    exact = Fraction(n) * Fraction(unit) / (1 - Fraction(n) * Fraction(unit))
    assert at_least(rounding.gamma(n, unit), exact)
    assert rounding.gamma(n, unit) <= float(exact) * (1 + 1e-12)


def test_what_is_unknown_is_infinite():
    nan = math.nan
    for value in (rounding.up(nan), rounding.product(nan, 0.0), rounding.product(0.0, math.inf)):
        assert value == math.inf
    for value in (rounding.total(1.0, nan), rounding.root(nan), rounding.root(-1.0), rounding.gamma(2**53)):
        assert value == math.inf
    assert rounding.scale_exponent(torch.tensor([1.0, nan])) is None
    assert rounding.norm_up(torch.tensor([1.0, nan])) == math.inf
    assert rounding.norm_up(torch.tensor([math.inf])) == math.inf


@given(matrices(), st.sampled_from([1, 2]))
@settings(max_examples=200)
def test_norms_of_rows_are_never_below_and_hardly_above(a, order):
    for value, row in zip(rounding.norms_up(a, order).tolist(), a.tolist(), strict=True):
        exact = [abs(Fraction(v)) for v in row]
        size = sum(exact) if order == 1 else root_up(sum(v * v for v in exact))
        if math.isfinite(value):
            assert (
                Fraction(value) >= sum(exact)
                if order == 1
                else Fraction(value) ** 2 >= sum(v * v for v in exact)
            )
            assert Fraction(value) <= size * (1 + Fraction(1, 10**13)) + 2 * Fraction(TINY)
        else:
            assert size > Fraction(10) ** 307
        assert (value == 0.0) == (not any(row))


# --- dense matrices ---


@given(matrices())
@settings(max_examples=300)
@example(torch.tensor([[1e200, 1e-200], [0.0, 1e200]], dtype=torch.float64))
@example(torch.full((3, 3), TINY, dtype=torch.float64))
@example(torch.full((2, 3), 1.7e308, dtype=torch.float64))
@example(torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], dtype=torch.float64))
def test_the_dense_bound_holds_exactly(a):
    bound = dense_bound(a)
    assert math.isinf(bound) or exactly_bounded(bound, a)
    assert (bound == 0.0) == (not a.any())


@given(matrices())
@settings(max_examples=100)
def test_the_dense_bound_is_tight(a):
    if 1e-290 < float(a.abs().max()) < 1e300:
        assert dense_bound(a) <= matrix_norm(a, "l2") * (1 + 1e-6)


@pytest.mark.parametrize("scale", [1e-200, 1e-3, 1.0, 1e200])
@pytest.mark.parametrize(
    "kind",
    ["orthogonal", "rank one", "identical columns", "clustered", "tall", "wide", "row", "column", "graded"],
)
def test_hard_spectra_at_every_scale(kind, scale):
    g = torch.Generator().manual_seed(0)
    a = torch.randn(30, 30, generator=g, dtype=torch.float64)
    q = torch.linalg.qr(a)[0]
    matrix = {
        "orthogonal": q,
        "rank one": torch.outer(a[0], a[1]),
        "identical columns": a[:, :1].expand(30, 30),
        "clustered": q @ torch.diag(1 + 1e-9 * torch.arange(30.0, dtype=torch.float64)) @ q.T,
        "tall": a[:, :4],
        "wide": a[:4],
        "row": a[:1],
        "column": a[:, :1],
        "graded": q @ torch.diag(10.0 ** -torch.arange(30.0, dtype=torch.float64)) @ q.T,
    }[kind]
    truth = matrix_norm(matrix, "l2") * scale
    bound = dense_bound(matrix * scale)
    assert truth * (1 - 1e-13) <= bound <= truth * (1 + 1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_matrix_with_a_broken_entry_has_no_bound(bad):
    a = torch.eye(4, dtype=torch.float64)
    a[2, 1] = bad
    assert dense_bound(a) == math.inf


def test_float32_matrices_are_bounded_as_they_are_stored():
    a = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert dense_bound(a) == dense_bound(a.double())
    assert exactly_bounded(dense_bound(a), a)


# --- the checked Cholesky trusts nobody ---


def banded(rows: int, size: int, band: int, seed: int) -> tuple[list[list[torch.Tensor]], torch.Tensor]:
    """A random symmetric block-banded matrix as blocks and whole."""
    g = torch.Generator().manual_seed(seed)
    whole = torch.zeros(rows * size, rows * size, dtype=torch.float64)
    blocks = []
    for i in range(rows):
        row = []
        for j in range(i, max(0, i - band) - 1, -1):
            block = torch.randn(size, size, generator=g, dtype=torch.float64)
            block = mirrored(block) if i == j else block
            whole[i * size : (i + 1) * size, j * size : (j + 1) * size] = block
            whole[j * size : (j + 1) * size, i * size : (i + 1) * size] = block.T
            row.append(block)
        blocks.append(row)
    return blocks, whole


@pytest.mark.parametrize(
    ("rows", "size", "band"), [(1, 6, 0), (5, 1, 4), (5, 3, 1), (6, 2, 3), (4, 4, 3), (7, 3, 0)]
)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_s_is_tried_the_answer_holds(rows, size, band, seed):
    """λ_max ≤ s + excess for any s that is not refused; below λ_max it is refused or pays for it."""
    blocks, whole = banded(rows, size, band, seed)
    top = float(torch.linalg.eigvalsh(whole)[-1])
    refused = 0
    for factor in (0.1, 0.9, 0.999999, 1.0, 1.0 + 1e-14, 1.0 + 1e-9, 1.1, 10.0, 1e6):
        excess = _checked_cholesky(blocks, factor * top)
        refused += excess is None
        if excess is not None:
            assert factor * top + excess >= top * (1 - 1e-14)
            assert factor < 1.0 or excess <= 1e-10 * factor * top
    assert 1 <= refused <= 5


@pytest.mark.parametrize(("rows", "size", "band"), [(1, 6, 0), (5, 3, 1), (6, 2, 3)])
@pytest.mark.parametrize("seed", range(10))
def test_a_wrong_factor_pays_for_itself(rows, size, band, seed, monkeypatch):
    """A Cholesky that always succeeds, with factors that are wrong by far: s + excess still bounds λ_max."""
    blocks, whole = banded(rows, size, band, seed)
    top = float(torch.linalg.eigvalsh(whole)[-1])
    solve, generator = torch.linalg.solve_triangular, torch.Generator().manual_seed(seed)

    def factor(a):
        good = torch.linalg.cholesky(a + (1.0 + float(a.abs().sum())) * torch.eye(len(a), dtype=a.dtype))
        return good, torch.tensor(0)

    def noisy(*arguments, **settings):
        x = solve(*arguments, **settings)
        return x + torch.randn(x.shape, generator=generator, dtype=x.dtype)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", factor)
    monkeypatch.setattr(torch.linalg, "solve_triangular", noisy)
    for s in (0.5 * top, top):
        excess = _checked_cholesky(blocks, s)
        assert excess is not None
        shifted = s * torch.eye(len(whole), dtype=torch.float64) - whole
        assert excess > 0.1
        assert s + excess >= top
        assert float(torch.linalg.eigvalsh(shifted)[0]) >= -excess


@pytest.mark.parametrize("lie", [0.5, 0.999, 1.0, 1.05, 100.0, 1e-30])
def test_a_wrong_guess_of_the_norm_does_no_harm(lie, monkeypatch):
    """The bound of a Lanczos that lies is infinite or still a bound."""
    _, whole = banded(4, 3, 2, seed=1)
    whole = whole @ whole  # positive, as a Gram matrix is
    top = float(torch.linalg.eigvalsh(whole)[-1])
    monkeypatch.setattr("gloronet.operators.norms.largest_ritz_value", lambda *_: lie * top)
    assert gram_bound(BandedGram([[mirrored(whole)]], 0.0), lambda v: whole @ v) >= top * (1 - 1e-14)


@pytest.mark.parametrize("n", [1, 2, 19, 20, 21, 60])
def test_lanczos_finds_the_top_even_from_a_cluster(n):
    g = torch.Generator().manual_seed(n)
    q = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64))[0]
    values = torch.cat(
        [torch.ones(n - 1, dtype=torch.float64), torch.tensor([1.0 + 1e-5], dtype=torch.float64)]
    )
    a = q @ torch.diag(values) @ q.T
    found = largest_ritz_value(lambda v: a @ v, n, a)
    assert 1.0 - 1e-6 <= found <= (1.0 + 1e-5) * (1 + 1e-12)


def test_mirrored_keeps_the_lower_triangle():
    a = torch.arange(9.0).reshape(3, 3)
    assert torch.equal(mirrored(a), torch.tensor([[0.0, 3, 6], [3, 4, 7], [6, 7, 8]]))


# --- margins ---


@given(matrices(), positive, st.sampled_from(["l2", "linf"]))
@settings(max_examples=150)
def test_margins_are_never_below_the_rows_difference(weight, constant, norm):
    margins = prove_margins(constant, weight, "margin", norm)
    rows = [[Fraction(v) for v in row] for row in weight.tolist()]
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            gap = [abs(v - w) for v, w in zip(a, b, strict=True)]
            value = float(margins[i, j])
            if norm == "linf":
                assert at_least(value, Fraction(constant) * sum(gap))
            else:
                assert math.isinf(value) or Fraction(value) ** 2 >= Fraction(constant) ** 2 * sum(
                    v * v for v in gap
                )
            assert (value == 0.0) == (constant == 0.0 or not any(gap))
    assert torch.equal(margins, margins.T)


@given(matrices(), st.sampled_from(["l2", "linf"]))
@settings(max_examples=60)
def test_simple_and_lmt_margins_are_never_below_the_margin_form(weight, norm):
    fine = prove_margins(1.0, weight, "margin", norm)
    other = prove_margins(1.0, weight, "simple", norm)
    off = ~torch.eye(len(weight), dtype=torch.bool)
    assert (other[off] >= fine[off] * (1 - 8 * U64)).all()
    if norm == "l2":
        assert (prove_margins(1.0, weight, "lmt", norm)[off] >= fine[off] * (1 - 8 * U64)).all()
