"""docs/choosing-epsilon.md: its table is what the script prints, and its pictures are as the script draws them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from docs import choosing_epsilon
from docs.choosing_epsilon import HEAD, rows, sets
from tests.pages import png_size

import gloronet as gn

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "choosing-epsilon.md").read_text(encoding="utf-8")


def test_the_script_prints_a_row_of_the_page_and_draws_its_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choosing_epsilon.main(sets()[:1], tmp_path)
    printed = capsys.readouterr().out
    assert printed.startswith(HEAD)
    assert all(line in PAGE.splitlines() for line in printed.splitlines())
    assert png_size(tmp_path / "epsilon_digits.png") == png_size(DOCS / "epsilon_digits.png")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar10", "tiny-imagenet"])
def test_the_rows_of_the_other_data_sets(name: str) -> None:
    try:
        data = gn.data.load(name)
    except gn.DataError as missing:
        pytest.skip(str(missing))
    (chosen,) = [s for s in sets("a run that is not read here") if s.name == name]
    assert all(line in PAGE.splitlines() for line in rows(chosen, data))


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.58, 5.0])
def test_noise_has_the_size_it_is_drawn_at(epsilon: float) -> None:
    """Cutting to [0, 1] takes some of it away, of a black image half; what is left must still be ε."""
    x = torch.zeros(1, 1, 28, 28)
    x[..., 10:18, 10:18] = 1.0
    other = choosing_epsilon.noisy(x, epsilon, torch.Generator().manual_seed(0))
    assert float((other - x).norm()) == pytest.approx(epsilon, rel=1e-4, abs=1e-4)
    assert 0 <= float(other.min()) <= float(other.max()) <= 1
