"""What changes under a certificate"""

from __future__ import annotations

from fractions import Fraction

import torch
from tests.soundness import naive
from tests.soundness.cases import (
    ACROSS,
    Answers,
    X,
    case,
    certified,
    claimed_radius,
    disproof,
    linear,
    number,
)
from torch import nn


def small(factor: float = 1.0) -> nn.Sequential:
    return nn.Sequential(linear(factor * torch.eye(2)), nn.ReLU(), linear(torch.eye(2)))


@case("A bound kept over load_state_dict")
def test_a_bound_kept_over_load_state_dict() -> Answers:
    """The bound is expensive, so it is computed once and kept. Then better weights are loaded, and the old
    bound certifies the new network."""
    module = small()
    net = certified(module, (2,))
    kept = naive.Cached(lambda: naive.constant(module[:1]))
    assert kept() == 1.0
    net.bound()
    module.load_state_dict(small(10.0).state_dict())
    claimed, ours, c = claimed_radius(module, kept()), net.bound().constant, net.certify(X)
    broken = disproof(module, X, ACROSS, claimed)
    assert 10.0 <= ours <= 10.0 * (1 + 1e-6)
    assert 0.5656 <= float(c.radius) <= 0.8 / 2**0.5 * (1 + 1e-7)
    return Answers(
        f"K = {number(kept())}, radius {number(claimed)}, {broken}",
        f"K = {number(ours)}, radius {number(c.radius)}: tensors are compared bit by bit",
    )


@case("A bound kept over p.data")
def test_a_bound_kept_over_an_edit_of_data() -> Answers:
    """So the cache is keyed by the tensors' version counters, which every in-place operation advances.
    Writing through `p.data` does not, and that is how weights are clipped, averaged and quantised."""
    module = small()
    net = certified(module, (2,))
    kept = naive.Cached(
        lambda: naive.constant(module[:1]), key=lambda: [p._version for p in module.parameters()]
    )
    assert kept() == 1.0
    net.bound()
    module[0].weight.data.mul_(10.0)
    claimed, ours = claimed_radius(module, kept()), net.bound().constant
    broken = disproof(module, X, ACROSS, claimed)
    assert 10.0 <= ours <= 10.0 * (1 + 1e-6)
    return Answers(f"K = {number(kept())}, radius {number(claimed)}, {broken}", f"K = {number(ours)}")


@case("A bound kept over an attribute")
def test_a_bound_kept_over_an_attribute() -> Answers:
    """So the cache is keyed by a hash of all tensors. BatchNorm's eps, a slope, a hook or a replaced
    submodule is no tensor, and each of them changes the function."""
    norm = nn.BatchNorm1d(2, eps=1.0, affine=False).double()
    norm.running_var.zero_()
    module = nn.Sequential(linear(torch.eye(2)), norm, nn.ReLU(), linear(torch.eye(2))).eval()
    net = certified(module, (2,))
    before = net.bound()
    kept = naive.Cached(
        lambda: 1.0 / norm.eps**0.5, key=lambda: [t.tolist() for t in module.state_dict().values()]
    )
    assert kept() == 1.0
    norm.eps = 1e-4
    claimed, ours = claimed_radius(module, kept()), net.bound()
    broken = disproof(module, X, ACROSS, claimed)
    assert 100.0 * (1 - 1e-9) <= ours.constant <= 100.0 * (1 + 1e-6)
    assert ours.digest != before.digest
    handle = module[2].register_forward_hook(lambda m, i, o: 2.0 * o)
    assert 200.0 * (1 - 1e-9) <= net.bound().constant <= 200.0 * (1 + 1e-6)
    handle.remove()
    module[2] = nn.LeakyReLU(3.0)
    assert 300.0 * (1 - 1e-9) <= net.bound().constant <= 300.0 * (1 + 1e-6)
    return Answers(
        f"K = {number(kept())}, radius {number(claimed)}, {broken}",
        f"K = {number(ours.constant)}; twice that with a hook, three times with another activation",
    )


@case("Weights rounded to text")
def test_weights_rounded_to_text() -> Answers:
    """The weights travel through a text file with six decimals, and the bound is computed there. What is
    deployed are the weights, not their text: small ones were rounded away."""
    module = nn.Sequential(linear([[4e-7, 0.0], [0.0, 4e-7]]), nn.ReLU(), linear(1e6 * torch.eye(2)))
    text = naive.as_text(module[0].weight.detach())
    wrong = float(torch.linalg.matrix_norm(text, 2))
    claimed = claimed_radius(module, wrong * 1e6)
    broken = disproof(module, X, ACROSS, claimed)
    net = certified(module, (2,))
    about = net.bound()
    other = nn.Sequential(linear(text), nn.ReLU(), linear(1e6 * torch.eye(2)))
    elsewhere = certified(other, (2,)).bound()
    assert elsewhere.digest != about.digest
    assert certified(module, (2,)).bound(known=elsewhere).constant == about.constant  # not taken over
    assert 4e-7 <= about.constant <= 4e-7 * (1 + 1e-6)
    return Answers(
        f"K = {number(wrong)}, radius {claimed}, {broken}",
        f"K = {number(about.constant)}; a bound belongs to the SHA-256 of every bit",
    )


@case("Statistics of the batch")
def test_statistics_of_the_batch() -> Answers:
    """BatchNorm left in training mode standardises by the batch at hand, so the label of an image depends
    on who sits beside it. Its radius "alone" is no promise about the next batch."""
    norm = nn.BatchNorm1d(2, affine=False).double()
    module = nn.Sequential(norm, linear(torch.eye(2)))
    company = torch.tensor([[[0.8, 0.3]], [[1.0, 0.0]]]).double()
    labels = []
    for others in company:
        y = module.train()(torch.cat([X, others]))[0]
        labels.append(int(y.argmax()))
    assert labels[0] != labels[1]
    norm.running_mean.zero_()
    norm.running_var.fill_(1.0)
    net = certified(module, (2,))
    answers = [
        net.train(mode).certify(torch.cat([X, others])) for mode in (True, False) for others in company
    ]
    assert {int(c.label[0]) for c in answers} == {0}
    assert len({float(c.radius[0]) for c in answers}) == 1
    return Answers(
        f"class {labels[0]} beside one image, class {labels[1]} beside another",
        f"class 0, radius {number(answers[0].radius[0])} in any company: certificates speak about eval mode",
    )


@case("Batches of another size")
def test_batches_of_another_size() -> Answers:
    """A matrix product sums in another order for a batch of 1 than for a batch of 64: the same image gets
    other logits, in the last digits. None of its float32 radii is "the" radius, and half of them are above
    the exact one."""
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(4, 50, generator=generator), torch.full((4,), 1e4)
    x = torch.randn(64, 50, generator=generator)
    net = certified(linear(weight, bias, torch.float32), (50,))
    batches = [torch.cat([net.certify(part).radius for part in x.split(size)]) for size in (1, 2, 7, 64)]
    truth = [exact_square(weight, x[k]) for k in range(len(x))]
    spread = max(float((radius - batches[0]).abs().max()) for radius in batches)
    for radius in batches:
        assert all(Fraction(float(r)) ** 2 <= t for r, t in zip(radius, truth, strict=True))
        assert all(
            float(r) >= float(t) ** 0.5 * (1 - 1e-6) - 1e-9 for r, t in zip(radius, truth, strict=True)
        )
    assert spread <= 1e-9
    single = [naive.radius(y, naive.gram_distances(weight)) for y in net.logits(x).detach()]
    above = sum(Fraction(float(r)) ** 2 > t for r, t in zip(single, truth, strict=True))
    assert 16 <= above <= 48
    return Answers(
        "in float32, about half of 64 radii are above the exact ones",
        "each radius is below the exact one; batches of 1, 2, 7 and 64 differ by less than 1e-09",
    )


def exact_square(weight: torch.Tensor, x: torch.Tensor) -> Fraction:
    """The square of the exact radius of a linear model whose biases are all equal."""
    rows = [[Fraction(w) for w in row] for row in weight.tolist()]
    point = [Fraction(v) for v in x.tolist()]
    y = [sum(w * v for w, v in zip(row, point, strict=True)) for row in rows]
    j = y.index(max(y))
    squares = []
    for i, row in enumerate(rows):
        if i != j:
            squares.append((y[j] - y[i]) ** 2 / sum((a - b) ** 2 for a, b in zip(rows[j], row, strict=True)))
    return min(squares)
