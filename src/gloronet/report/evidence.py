"""The sections of evidence, one function each; a file that is not there gets one honest sentence instead."""

from __future__ import annotations

import math

import numpy as np

from gloronet.report import counts, html, style
from gloronet.report.counts import down, nearest, percent, up
from gloronet.report.html import Markup, tag
from gloronet.report.rows import Bound, Run

_K_IJ = Markup("K<sub>ij</sub>")


def accuracy(run: Run, png: bytes) -> Markup:
    caption = [
        "At each radius r, the share of samples that are right and certified beyond r; the steps are in ",
        tag("code", "figures/certified_accuracy.csv"),
        ". ",
    ]
    if run.minimal is not None:
        n = len(run.minimal.row)
        caption.append(
            f"Above it, the share of the {n} attacked samples that are right and for which no adversarial "
            "point was found within r."
        )
    elif run.attack is not None:
        caption.append(
            "The diamond is the accuracy under PGD; this run has no attacks_minimal.csv for a curve."
        )
    alt = f"Certified accuracy falls from {percent(counts.clean(run).share)} clean as the radius grows"
    parts = [html.figure(png, alt, *caption), _at_radii(run)]
    if run.attack is None:
        text = "Nothing has tried to break these answers at ε: attacks.csv is not here."
        parts.append(html.missing(text, "gloronet attack RUN"))
    if run.attack is not None or run.minimal is not None:
        parts.append(_verdict(run))
    return html.section("Certified accuracy against radius", *parts)


def _at_radii(run: Run) -> Markup:
    """The two curves read off at a few radii."""
    c, attack = run.certificates, run.minimal
    rows = []
    for name, times in (("0", 0.0), ("ε/2", 0.5), ("ε", 1.0), ("3ε/2", 1.5), ("2ε", 2.0)):
        r = times * run.epsilon
        row = [f"{name} = {r:.4g}" if r else name, percent(float((c.right & (c.radius > r)).mean()))]
        if attack is not None:
            # Beyond the largest radius it was given the attack never looked.
            looked = r <= max(attack.epsilon, attack.distance[attack.success].max(initial=0.0))
            unbroken = float((c.right[attack.row] & (attack.distance > r)).mean())
            row.append(percent(unbroken) if looked else "—")
        rows.append(row)
    head = ["radius r", "proved", *(["not broken by the attack"] if attack is not None else [])]
    return html.table(head, rows)


def _verdict(run: Run) -> Markup:
    """Did any attack get inside a certified radius? If so, nothing else on the page matters."""
    broken = counts.refuted(run)
    if not broken:
        return tag("p", "No attack changed a right answer inside its certified radius.", kind="note-line")
    listed = ", ".join(map(str, broken[:10])) + (", …" if len(broken) > 10 else "")
    return tag(
        "p",
        tag("b", f"{len(broken)} certificates are contradicted. "),
        f"An attack changed the answer inside the certified radius of samples {listed}. Do not rely on this "
        "run. Evaluate these points in float64: if they hold there too, a bound is wrong; please report it.",
        kind="alarm",
    )


def radii(run: Run, png: bytes) -> Markup:
    c = run.certificates
    infinite = int(np.isinf(c.radius).sum())
    caption = (
        f"Samples to the right of ε = {run.epsilon_text} are certified; to the left the network says ⊥. "
        f"The last bar holds all larger radii{f', {infinite} of them infinite' if infinite else ''}."
    )
    alt = "Histogram of certified radii, right and wrong answers"
    return html.section("Radii", html.figure(png, alt, caption))


def classes(run: Run) -> Markup:
    rows = [
        (
            row.name,
            str(row.clean.total),
            html.bar(percent(row.clean.share), row.clean.share, style.INK),
            html.bar(percent(row.vra.share), row.vra.share, style.PROVED),
            down(row.mean_radius),
        )
        for row in counts.per_class(run)
    ]
    head = ("class", "samples", "clean", f"VRA at ε = {run.epsilon_text}", "mean radius")
    return html.section("By class", html.table(head, rows))


def training(run: Run, png: bytes | None) -> Markup:
    if png is None:
        text = "There are no training curves: metrics.jsonl is not here."
        return html.section("Training", html.missing(text, "gloronet train … --out RUN"))
    caption = (
        "Both accuracies are on the training set. The dashed VRA uses Lipschitz constants estimated from "
        "below by power iteration: an estimate, good for watching and choosing, which certifies nothing."
    )
    alt = "Training curves: loss, accuracy, estimated VRA"
    return html.section("Training", html.figure(png, alt, caption))


def bound(run: Run) -> Markup:
    """Layer by layer, estimates and bounds in columns of their own, and the margin constants."""
    title = "Lipschitz bound by layer"
    if run.bound is None:
        text = "There is no table of bounds: bound.json is not here."
        return html.section(title, html.missing(text, "gloronet lipschitz RUN"))
    layers = run.bound.layers
    largest = max((layer.bound for layer in layers), default=math.inf)
    rows = []
    for layer in layers:
        costly = layer.bound == largest > 1
        name = html.join([layer.name, *([tag("span", "largest", kind="most")] if costly else [])], "")
        rows.append((name, layer.rule, layer.method, nearest(layer.estimate), up(layer.bound)))
    head = ("layer", "rule", "method", "estimate, from below", "bound, proved from above")
    seconds = "" if math.isnan(run.bound.seconds) else f" It took {run.bound.seconds:.1f} s to prove."
    note = (
        f"Up to the last hidden layer the constant is at most K = {up(run.bound.constant)}.{seconds} "
        "Bounds are printed rounded up. Estimates steer training and are shown for comparison only."
    )
    parts = [html.table(head, rows, "layers"), tag("p", note)]
    if len(run.bound.margins) > 1:
        parts += _margins(run, run.bound)
    return html.section(title, *parts)


def _margins(run: Run, b: Bound) -> list[Markup]:
    m = len(b.margins)
    i, j = np.nonzero(~np.eye(m, dtype=bool))
    values = b.margins[i, j]
    rows = []
    for name, k in (("smallest", values.argmin()), ("largest", values.argmax())):
        pair = f"{run.class_name(int(i[k]))} against {run.class_name(int(j[k]))}"
        rows.append((name, pair, up(float(values[k]))))
    rows.insert(1, ("median", f"all {len(values)} ordered pairs", up(float(np.median(values)))))
    parts = [
        tag("h3", "Margin constants"),
        tag("p", _K_IJ, " bounds how fast logit j can gain on logit i. A radius is the smallest margin "
            "between the answer and another class, each divided by its constant."),
        html.table(("", "classes", _K_IJ), rows, "text"),
    ]  # fmt: skip
    if m <= 12:  # a larger matrix is for bound.json, not for reading
        names = [run.class_name(k) for k in range(m)]
        cells = [["" if a == c else up(float(b.margins[a, c])) for c in range(m)] for a in range(m)]
        matrix = html.table(
            ("", *names), ((name, *row) for name, row in zip(names, cells, strict=True)), "matrix"
        )
        parts.append(tag("details", tag("summary", f"All {m} × {m} margin constants"), matrix))
    return parts
