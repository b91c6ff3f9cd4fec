"""The look of the page: one column, system fonts, the colours of the figures."""

from __future__ import annotations

from gloronet.report.style import ATTACKED, BOTTOM, INK, MUTED, PROVED

CSS = f"""
:root {{ color-scheme: light; --ink: {INK}; --muted: {MUTED}; --line: #e1e5ea; --soft: #f6f8fa;
  --proved: {PROVED}; --attacked: {ATTACKED}; --bottom: {BOTTOM}; }}
* {{ box-sizing: border-box; }}
html {{ -webkit-text-size-adjust: 100%; }}
body {{ margin: 0; background: #fff; color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }}
main {{ max-width: 860px; margin: 0 auto; padding: 44px 24px 56px; }}
header .kicker {{ color: var(--muted); font-size: .8rem; letter-spacing: .08em; text-transform: uppercase;
  margin: 0; }}
h1 {{ font-size: 2rem; line-height: 1.2; margin: .15em 0 .2em; letter-spacing: -.015em;
  overflow-wrap: anywhere; }}
header .sub {{ color: var(--muted); margin: 0 0 28px; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.28rem; margin: 0 0 .5em; letter-spacing: -.01em; }}
h3 {{ font-size: .95rem; margin: 1.5em 0 .55em; font-weight: 600; }}
section {{ margin-top: 44px; padding-top: 26px; border-top: 1px solid var(--line); }}
p {{ margin: 0 0 .9em; max-width: 46em; }}
code {{ font: .88em ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  background: var(--soft); padding: .1em .35em; border-radius: 4px; overflow-wrap: anywhere; }}

.cards {{ display: grid; grid-template-columns: repeat(4, 1fr); gap: 12px; }}
.card {{ border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px 13px; }}
.card .label {{ font-size: .84rem; color: var(--muted); overflow-wrap: anywhere; }}
.card .value {{ font-size: 1.8rem; line-height: 1.25; font-weight: 650; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; white-space: nowrap; }}
.card .note {{ font-size: .8rem; line-height: 1.4; color: var(--muted); margin-top: 3px; }}
.card.main {{ background: var(--proved); border-color: var(--proved); color: #fff; }}
.card.main .label, .card.main .note {{ color: #e2f0f9; }}

.share {{ display: flex; height: 14px; border-radius: 7px; overflow: hidden; gap: 2px; margin: 24px 0 10px; }}
.key {{ display: flex; flex-wrap: wrap; gap: 4px 22px; list-style: none; margin: 0; padding: 0;
  font-size: .86rem; color: var(--muted); }}
.key i {{ display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 7px; }}
.key b {{ color: var(--ink); font-weight: 600; }}

.claim {{ margin: 28px 0 0; padding: 18px 22px; background: #f1f7fb; border-radius: 10px;
  border-left: 4px solid var(--proved); }}
.claim p {{ margin: 0; max-width: none; }}
.alarm {{ padding: 16px 20px; border-radius: 10px; background: #fdefe6;
  border-left: 4px solid var(--attacked); }}
.missing {{ padding: 13px 18px; background: var(--soft); border-radius: 8px; color: var(--muted);
  font-size: .92rem; max-width: none; }}
.missing code {{ background: #e9edf1; color: var(--ink); }}

figure {{ margin: 6px 0 18px; }}
figure img {{ display: block; width: 100%; max-width: 660px; height: auto; margin: 0 auto; }}
figcaption, .note-line {{ color: var(--muted); font-size: .89rem; margin-top: 8px; max-width: 52em; }}

.wide {{ overflow-x: auto; margin: 0 0 16px; }}
table {{ border-collapse: collapse; width: 100%; font-size: .91rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 7px 14px 7px 0; text-align: right; border-bottom: 1px solid var(--line);
  vertical-align: top; }}
th:first-child {{ text-align: left; }}
th:last-child, td:last-child {{ padding-right: 2px; }}
thead th {{ color: var(--muted); font-weight: 500; font-size: .84rem; border-bottom-color: #c9d0d8;
  vertical-align: bottom; }}
tbody th {{ font-weight: 500; }}
table.text td, table.text thead th {{ text-align: left; }}
table.text th, table.text td {{ padding-top: 4px; padding-bottom: 4px; }}
table.text th:first-child {{ width: 34%; }}
table.layers th:nth-child(-n+3), table.layers td:nth-child(-n+3) {{ text-align: left; }}
table.layers td:nth-child(4) {{ color: var(--muted); font-style: italic; }}
table.layers td:nth-child(5) {{ font-weight: 600; }}
table.matrix {{ font-size: .76rem; }}
table.matrix th, table.matrix td {{ padding: 4px 6px; text-align: right; }}
.most {{ display: inline-block; margin-left: 8px; padding: 0 8px; border-radius: 9px; background: #fdefe6;
  color: #8f3f00; font-size: .76rem; font-weight: 600; white-space: nowrap; }}
.barred {{ display: inline-flex; align-items: center; gap: 10px; white-space: nowrap; }}
.bar {{ width: 76px; height: 6px; border-radius: 3px; background: var(--line); overflow: hidden; }}
.bar span {{ display: block; height: 100%; border-radius: 3px; }}
sub {{ line-height: 0; }}
details summary {{ cursor: pointer; color: var(--muted); font-size: .91rem; margin-bottom: 10px; }}

.tiles {{ display: grid; grid-template-columns: repeat(6, 1fr); gap: 12px; }}
.tile {{ font-size: .82rem; line-height: 1.35; min-width: 0; overflow-wrap: anywhere; }}
.tile img, .pair img {{ display: block; width: 100%; image-rendering: pixelated; border-radius: 6px; }}
.tile img {{ border: 3px solid var(--bottom); margin-bottom: 5px; }}
.tile.proved img {{ border-color: var(--proved); }}
.tile.wrong img {{ border-color: var(--attacked); }}
.tile b, .pair b {{ font-weight: 600; font-variant-numeric: tabular-nums; }}
.tile span, .pair span {{ color: var(--muted); display: block; }}
.pairs {{ display: grid; grid-template-columns: repeat(3, 1fr); gap: 20px 24px; }}
.pair {{ font-size: .82rem; line-height: 1.4; }}
.pair .three {{ display: grid; grid-template-columns: repeat(3, 1fr); gap: 4px; margin-bottom: 5px; }}

footer {{ margin-top: 44px; padding-top: 20px; border-top: 1px solid var(--line); color: var(--muted);
  font-size: .84rem; overflow-wrap: anywhere; }}
footer p {{ max-width: none; margin: 0 0 .35em; }}

@media (max-width: 640px) {{
  main {{ padding: 24px 16px 40px; }}
  h1 {{ font-size: 1.5rem; }}
  .cards {{ grid-template-columns: 1fr 1fr; gap: 10px; }}
  .card {{ padding: 11px 13px; }}
  .card .value {{ font-size: 1.5rem; }}
  .claim {{ padding: 14px 16px; }}
  .tiles {{ grid-template-columns: repeat(3, 1fr); }}
  .pairs {{ grid-template-columns: 1fr; }}
  section {{ margin-top: 32px; padding-top: 22px; }}
  table {{ font-size: .86rem; }}
  .bar {{ display: none; }}
  table.layers th, table.layers td {{ padding-right: 9px; font-size: .8rem; }}
  .most {{ margin-left: 4px; padding: 0 6px; font-size: .68rem; }}
  figure img {{ width: calc(100% + 20px); max-width: none; margin: 0 -10px; }}
}}
@media print {{ main {{ max-width: none; padding: 0; }}
  figure, .card, .tile, .pair, tr {{ break-inside: avoid; }}
  * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }} }}
"""
