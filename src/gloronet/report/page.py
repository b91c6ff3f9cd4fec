"""The page: what is proved first, then the evidence, then how it was made."""

from __future__ import annotations

import numpy as np

from gloronet.config import settings
from gloronet.report import counts, evidence, html, style
from gloronet.report.counts import down, nearest, percent
from gloronet.report.html import Markup, tag
from gloronet.report.pictures import pictures
from gloronet.report.rows import Attack, Run

_FUNCTIONS = {
    "real": "the exact function of the stored weights",
    "float32": "the float32 network as deployed on a CPU",
}


def render(run: Run, figures: dict[str, bytes]) -> str:
    """The whole report.html; `figures` holds the PNG files by name."""
    title = f"{run.config.data.name}, {run.config.model.architecture} at ε = {run.epsilon_text}"
    parts = [
        _head(run),
        evidence.accuracy(run, figures["certified_accuracy.png"]),
        evidence.radii(run, figures["radii.png"]),
        pictures(run, figures.get("regions.png")),
        evidence.classes(run),
        evidence.training(run, figures.get("training.png")),
        evidence.bound(run),
        _settings(run),
        _provenance(run),
    ]
    return html.document(f"{title} · gloronet", html.join(parts))


def _head(run: Run) -> Markup:
    c, config = run.certificates, run.config
    clean, vra, worth = counts.clean(run), counts.vra(run), counts.worth(run)
    pgd = ("PGD", "—", "not measured")
    if run.attack is not None:
        held = counts.withstood(run, run.attack)
        pgd = (f"PGD at ε = {_attack_epsilon(run, run.attack)}", percent(held.share),
               f"{held.hits} of {held.total} right under attack")  # fmt: skip
    cards = (
        html.card("Clean", percent(clean.share), f"{clean.hits} of {clean.total} right"),
        html.card(*pgd),
        html.card(f"VRA at ε = {run.epsilon_text}", percent(vra.share),
                  f"{vra.hits} of {vra.total} right and certified", "main"),
        html.card("Mean radius", down(float(worth.mean())),
                  f"median {down(float(np.median(worth)))}; a wrong answer counts 0"),
    )  # fmt: skip
    return html.join(
        [
            tag("header",
                tag("p", "gloronet report", kind="kicker"),
                tag("h1", f"{config.data.name}, certified at ε = {run.epsilon_text}"),
                tag("p", f"{config.model.architecture} with {config.model.activation}, {config.form} form, "
                         f"{run.norm} norm, {len(c)} test samples", kind="sub")),
            tag("div", *cards, kind="cards"),
            _outcomes(run),
            _claim(run),
        ]
    )  # fmt: skip


def _outcomes(run: Run) -> Markup:
    """One bar for all samples: certified or ⊥, right or wrong."""
    named = (
        ((True, True), style.PROVED, "certified and right"),
        ((True, False), style.ATTACKED, "certified and wrong"),
        ((False, True), "#8a94a0", "⊥, answer right"),
        ((False, False), style.BOTTOM, "⊥, answer wrong"),
    )
    number = counts.outcomes(run)
    parts = [(number[case], colour, name) for case, colour, name in named]
    pieces = (Markup(f'<span style="flex:{n};background:{colour}"></span>') for n, colour, _ in parts if n)
    keys = (
        tag("li", Markup(f'<i style="background:{colour}"></i>'), tag("b", n), f" {name}")
        for n, colour, name in parts
    )
    return html.join([tag("div", *pieces, kind="share"), tag("ul", *keys, kind="key")])


def _claim(run: Run) -> Markup:
    semantics = run.certificates.semantics
    function = " and of ".join(_FUNCTIONS.get(s, f"the network in {s} arithmetic") for s in semantics)
    quoted = ", ".join(f"“{name}”" for name in semantics)
    text = (
        f"For every sample here: no change of the input with {run.norm} norm smaller than its radius alters "
        f"the label of {function} (semantics {quoted}). The bound is proved from above in float64, with "
        f"outward rounding. A sample is certified when its radius is greater than ε = {run.epsilon_text}; "
        "otherwise the network answers ⊥, “I abstain”. A certificate proves that an answer is stable, "
        "not that it is true. The training curves’ VRA is an estimate and certifies nothing."
    )
    return tag("div", tag("p", tag("b", "What is guaranteed. "), text), kind="claim")


def _settings(run: Run) -> Markup:
    rows = [(name, tag("code", value)) for name, value in settings(run.config).items()]
    return html.section("Settings", html.table(("config.toml", "value"), rows, "text"))


def _provenance(run: Run) -> Markup:
    s = run.summary
    lines = []
    if not s:
        text = "What made this run is not recorded: summary.json is not here."
        lines.append(html.missing(text, "gloronet certify RUN"))
    named = (("gloronet", "version"), ("commit", "commit"), ("on", "hardware"), ("data", "data"))
    facts = [f"{name} {s[key]}" for name, key in named if key in s]
    if isinstance(s.get("seconds"), dict):
        facts += [f"{name} {_short(value)} s" for name, value in s["seconds"].items()]
    if facts:
        lines.append(tag("p", " · ".join(facts)))
    if run.bound is not None and run.bound.digest:
        lines.append(tag("p", "Program digest ", tag("code", run.bound.digest)))
    sources = "Every number here is computed from the rows of certificates.csv and the files beside it."
    return tag("footer", *lines, tag("p", sources))


def _attack_epsilon(run: Run, attack: Attack) -> str:
    return run.epsilon_text if np.isclose(attack.epsilon, run.epsilon) else nearest(attack.epsilon)


def _short(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, int | float) else str(value)
