"""The figures, each a function (figure, run) that draws rows and nothing else."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from matplotlib.ticker import MaxNLocator

from gloronet.report import counts, style
from gloronet.report.files import Array
from gloronet.report.rows import Run


def curves(run: Run) -> dict[str, tuple[Array, Array]]:
    """The rows behind `certified_accuracy`: name → (radius, share).

    `certified` comes from the certificates; above it `attack`, from the smallest adversarial distances
    found, or the single point `pgd` at the attack's ε, or nothing.
    """
    c = run.certificates
    rows = {"certified": counts.curve(c.radius, c.right)}
    if run.minimal is not None:
        rows["attack"] = counts.attack_curve(run, run.minimal)
    elif run.attack is not None:
        share = counts.withstood(run, run.attack).share
        rows["pgd"] = (np.array([run.attack.epsilon]), np.array([share]))
    return rows


def certified_accuracy(figure: Figure, run: Run) -> None:
    """Certified accuracy against radius, the attack's above it, ε marked."""
    ax, rows = figure.subplots(), curves(run)
    end = _extent(run.certificates.radius, run.epsilon)
    ax.plot(0, counts.clean(run).share, "o", color=style.INK, clip_on=False, zorder=5, label="clean")
    if run.minimal is not None:
        end = max(end, _extent(run.minimal.distance, run.epsilon))
        r, share = rows["attack"]
        reach = max(r[-1], run.minimal.epsilon)  # beyond it the attack never looked, so no line is drawn
        r, share = np.append(r, reach), np.append(share, share[-1])
        ax.step(r, share, where="post", color=style.ATTACKED, label="attacked: unbroken within r")
        if reach >= run.epsilon:
            _point(ax, run.epsilon, _value(r, share, run.epsilon), style.ATTACKED)
    elif run.attack is not None:
        (at,), (withstood,) = rows["pgd"]
        end = max(end, 1.2 * at)
        _point(ax, at, withstood, style.ATTACKED, label="attacked: withstood PGD")
    r, share = rows["certified"]
    r, share = np.append(r, max(end, r[-1])), np.append(share, share[-1])
    ax.fill_between(r, share, step="post", color=style.PROVED, alpha=0.12, linewidth=0)
    ax.step(r, share, where="post", color=style.PROVED, label="proved: radius > r")
    proved = _value(r, share, run.epsilon)
    _point(ax, run.epsilon, proved, style.PROVED, below=run.epsilon > 0.2 * end and proved > 0.15)
    style.mark_epsilon(ax, run.epsilon, run.epsilon_text)
    style.percent_axis(ax)
    ax.set_ylim(top=1.12)  # room for a number above a curve near 100 %
    ax.set_xlim(0, end)
    ax.set_xlabel(f"radius r of the change of the input ({run.norm})")
    ax.set_ylabel("right answers")
    figure.legend(loc="outside upper left", ncols=3)


def radii(figure: Figure, run: Run) -> None:
    """Histogram of certified radii, right answers below, wrong ones stacked on them."""
    figure.set_size_inches(style.WIDTH, 3.2)
    ax, c = figure.subplots(), run.certificates
    end = _extent(c.radius, run.epsilon)
    width = end / 40
    if run.epsilon > width:  # make ε an edge of a bin, so that no bar is half certified
        width = run.epsilon / round(run.epsilon / width)
    bins = width * np.arange(np.ceil(end / width) + 1)
    ax.hist(
        [np.minimum(c.radius[which], bins[-1]) for which in (c.right, ~c.right)],
        bins=bins.tolist(),
        stacked=True,
        color=[style.PROVED, style.ATTACKED],
        edgecolor="white",
        linewidth=0.5,
        label=["right", "wrong"],
    )
    ax.axvspan(0, run.epsilon, color=style.BOTTOM, alpha=0.14, linewidth=0, zorder=0, label="⊥: abstains")
    style.mark_epsilon(ax, run.epsilon, run.epsilon_text)
    ax.set_xlim(0, bins[-1])
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.grid(visible=False, axis="x")
    ax.set_xlabel(f"certified radius ({run.norm})")
    ax.set_ylabel("samples")
    figure.legend(loc="outside upper left", ncols=3)


def training(figure: Figure, run: Run) -> None:
    """Loss above; clean accuracy and *estimated* VRA on the training set below."""
    assert run.metrics is not None
    figure.set_size_inches(style.WIDTH, 4.6)
    epoch = run.metrics["epoch"]
    marker = "o" if len(epoch) == 1 else ""
    loss, shares = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.3])
    loss.plot(epoch, run.metrics["loss"], color=style.INK, marker=marker)
    loss.set_ylim(bottom=0)
    loss.set_title("Loss")
    shares.plot(epoch, run.metrics["accuracy"], color=style.INK, marker=marker, label="clean")
    shares.plot(
        epoch,
        run.metrics["vra_estimate"],
        color=style.ESTIMATED,
        linestyle=(0, (5, 2)),
        marker=marker,
        label="VRA, estimate only",
    )
    shares.set_title("Accuracy on the training set")
    style.percent_axis(shares)
    shares.set_xlabel("epoch")
    shares.set_xlim(epoch[0] - 0.5, epoch[-1] + 0.5)
    shares.legend(loc="lower right")


def regions(figure: Figure, run: Run) -> None:
    """Decision regions of a 2-D net with the ⊥ band between them, the samples, and one ball of radius ε."""
    assert run.regions is not None
    g = run.regions
    x0, x1, y0, y1 = g.xs[0], g.xs[-1], g.ys[0], g.ys[-1]
    figure.set_size_inches(style.WIDTH, float(np.clip(5.4 * (y1 - y0) / (x1 - x0), 2, 8)) + 0.6)
    ax = figure.subplots()
    pixels = np.empty((*g.prediction.shape, 3))
    pixels[...] = to_rgb(style.BOTTOM)
    for k in np.unique(g.prediction[g.prediction >= 0]):
        pixels[g.prediction == k] = 0.42 * np.array(to_rgb(_colour(k))) + 0.58
    dx, dy = (x1 - x0) / (len(g.xs) - 1) / 2, (y1 - y0) / (len(g.ys) - 1) / 2
    ax.imshow(pixels, origin="lower", extent=(x0 - dx, x1 + dx, y0 - dy, y1 + dy), interpolation="nearest")
    for k in np.unique(g.labels):
        x, y = g.points[g.labels == k].T
        name, marker = run.class_name(int(k)), style.MARKERS[int(k) % len(style.MARKERS)]
        ax.scatter(x, y, s=20, color=_colour(k), marker=marker, edgecolor="white", linewidth=0.6, label=name)
    ax.fill([], [], color=style.BOTTOM, label="⊥: abstains")
    if 0 < run.epsilon < min(x1 - x0, y1 - y0) / 4:
        _ball(ax, run, (x1 - 1.4 * run.epsilon, y0 + 1.4 * run.epsilon))
    ax.set_xlim(x0 - dx, x1 + dx)
    ax.set_ylim(y0 - dy, y1 + dy)
    ax.set_aspect("equal")
    ax.grid(visible=False)
    figure.legend(loc="outside upper left", ncols=6)


def _value(r: Array, share: Array, at: float) -> float:
    """A step curve at one radius."""
    return float(share[np.searchsorted(r, at, side="right") - 1])


def _point(ax: Axes, x: float, share: float, colour: str, below: bool = False, label: str = "") -> None:
    """A dot with its value, written above it to the right or below it to the left."""
    ax.plot(x, share, "o", color=colour, markersize=6, zorder=5, label=label or "_")
    ax.annotate(
        counts.percent(share),
        (x, share),
        xytext=(-7, -6) if below else (7, 5),
        textcoords="offset points",
        ha="right" if below else "left",
        va="top" if below else "bottom",
        color=colour,
        fontweight="bold",
        zorder=6,
    )


def _ball(ax: Axes, run: Run, centre: tuple[float, float]) -> None:
    """The changes a certificate at ε covers, to scale: a disc in ℓ2, a square in ℓ∞."""
    x, y = centre
    r = run.epsilon
    shape = Circle(centre, r) if run.config.norm == "l2" else Rectangle((x - r, y - r), 2 * r, 2 * r)
    shape.set(facecolor="white", alpha=0.85, edgecolor=style.INK, linewidth=1.1, zorder=4)
    ax.add_patch(shape)
    ax.annotate("ε", centre, ha="center", va="center", zorder=5)


def _colour(k: int) -> str:
    return style.CLASSES[int(k) % len(style.CLASSES)]


def _extent(values: Array, epsilon: float) -> float:
    """Where the radius axis ends: almost all finite values and ε are inside; outliers do not stretch it."""
    finite = values[np.isfinite(values)]
    return max(1.05 * float(np.quantile(finite, 0.995)) if len(finite) else 0.0, 1.5 * epsilon) or 1.0
