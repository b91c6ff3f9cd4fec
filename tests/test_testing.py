"""The helper for rules of one's own: true rules pass, false ones are caught."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gloronet as gn
from gloronet.operators.rules import MODULE_RULES
from gloronet.testing import check_rule


class Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * x.clamp(-1.0, 1.0)


@pytest.fixture(autouse=True)
def rules_as_before():
    before = dict(MODULE_RULES)
    yield
    MODULE_RULES.clear()
    MODULE_RULES.update(before)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_a_true_rule_passes_and_the_search_comes_close(norm: str) -> None:
    gn.rule(Double)(lambda module, shape, norm: 2.0)
    found = check_rule(Double(), (4,), norm)
    assert found.constant == 2.0
    assert 1.99 < found.ratio <= 2.0 * (1 + 1e-6)


def test_a_false_rule_is_caught() -> None:
    gn.rule(Double)(lambda module, shape, norm: 1.5)
    with pytest.raises(AssertionError, match=r"claims K = 1\.5"):
        check_rule(Double(), (4,))


def test_a_module_that_mixes_samples_is_caught() -> None:
    class Centre(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    gn.rule(Centre)(lambda module, shape, norm: 2.0)
    with pytest.raises(AssertionError, match="mixes the samples"):
        check_rule(Centre(), (4,))


OURS = [gn.MinMax(), nn.ReLU(), nn.Conv2d(2, 3, 3), nn.Tanh()]


@pytest.mark.parametrize("module", OURS, ids=lambda m: type(m).__name__)
def test_our_own_rules_pass(module: nn.Module) -> None:
    torch.manual_seed(0)
    found = check_rule(module, (2, 5, 5), steps=50)
    assert found.ratio <= found.constant * (1 + 1e-6)
