"""The sections to look at: decision regions of 2-D data, a gallery of images with their radii."""

from __future__ import annotations

from gloronet.report import gallery, html
from gloronet.report.gallery import Pair, Tile
from gloronet.report.html import Markup, tag
from gloronet.report.rows import Gallery, Run


def pictures(run: Run, regions: bytes | None) -> Markup:
    parts = []
    if regions is not None:
        alt = "Coloured decision regions with a dark band between them where the network abstains"
        caption = (
            f"What the network answers at ε = {run.epsilon_text}. In the dark band it says ⊥. Two points of "
            "different colours are more than 2ε apart. The outlined shape has radius ε."
        )
        parts.append(html.section("Decision regions", html.figure(regions, alt, caption)))
    if run.gallery is not None:
        parts.append(html.section("Gallery", *_gallery(run, run.gallery)))
    if not parts:
        text = "There are no pictures: gallery.npz (images) or regions.npz (2-D data) is not here."
        parts.append(html.section("Gallery", html.missing(text, "gloronet certify RUN")))
    return html.join(parts)


def _gallery(run: Run, stored: Gallery) -> list[Markup]:
    if not stored.drawable:
        shape = "×".join(map(str, stored.images.shape))
        text = f"gallery.npz holds {shape} values; only images of one or three channels can be shown."
        return [tag("p", text, kind="missing")]
    intro = (
        f"From the {len(stored.row)} images stored with this run: r is the certified radius, below it the "
        "answer. Frames: blue is certified, grey is ⊥ (in brackets the answer withheld), vermillion is "
        "certified and wrong."
    )
    parts = [tag("p", intro)]
    for heading, tiles in gallery.groups(run):
        parts += [tag("h3", heading), tag("div", *map(_tile, tiles), kind="tiles")]
    pairs = gallery.pairs(run)
    if pairs:
        heading = "The nearest adversarial images found: image, adversarial image, change (stretched)"
        parts += [tag("h3", heading), tag("div", *map(_pair, pairs), kind="pairs")]
    return parts


def _tile(tile: Tile) -> Markup:
    image = html.picture(gallery.thumbnail(tile.image), f"{tile.answer}, radius {tile.radius}")
    return tag(
        "div", image, tag("b", f"r = {tile.radius}"), tag("span", tile.answer), kind=f"tile {tile.kind}"
    )


def _pair(pair: Pair) -> Markup:
    images = (
        html.picture(gallery.thumbnail(pair.image), f"image of {pair.label}"),
        html.picture(gallery.thumbnail(pair.adversarial), "adversarial image"),
        html.picture(gallery.thumbnail(pair.change), "the change between them, stretched"),
    )
    proved = f"{pair.label}, certified to {pair.radius}"
    return tag(
        "div",
        tag("div", *images, kind="three"),
        tag("b", f"changed at {pair.distance}"),
        tag("span", proved),
        kind="pair",
    )
