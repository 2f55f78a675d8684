"""The page's style sheet: light and dark on a screen, dark ink on paper."""

from __future__ import annotations

#: Colours by meaning. `s1`..`s6` are curves; the rest of the second group are links, near to far.
_LIGHT = """--bg:#fbfbfa;--card:#fff;--ink:#1c2024;--soft:#5c6570;--line:#e1e4e8;
--pass:#1a7f4b;--warn:#8f5d00;--fail:#c0322b;--skip:#626b76;--one:#8a94a0;--many:#1f6feb;
--tint:31 111 235;--s1:#1f6feb;--s2:#12805c;--s3:#b06a00;--s4:#8250df;--s5:#bf3989;--s6:#57606a;
--nv:#12805c;--pix:#0b7f9c;--pxb:#1f6feb;--phb:#8250df;--node:#b06a00;--sys:#c0473f"""
_DARK = """--bg:#14171a;--card:#1b1f23;--ink:#e6e9ec;--soft:#9aa4ae;--line:#30363d;
--pass:#4cc38a;--warn:#e0a63a;--fail:#ff7b72;--skip:#8b949e;--one:#8b949e;--many:#6cb0ff;
--tint:108 176 255;--s1:#6cb0ff;--s2:#4cc38a;--s3:#e0a63a;--s4:#b894ff;--s5:#f583bd;--s6:#9aa4ae;
--nv:#4cc38a;--pix:#4fc3dc;--pxb:#6cb0ff;--phb:#b894ff;--node:#e0a63a;--sys:#ff8a80"""

CSS = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--bg);color:var(--ink);-webkit-text-size-adjust:100%;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","DejaVu Sans",sans-serif}}
main{{max-width:880px;margin:0 auto;padding:40px 20px 64px}}
.brand{{color:var(--soft);font-size:13px;letter-spacing:.04em}}
h1{{font-size:25px;line-height:1.3;margin:6px 0 18px;overflow-wrap:anywhere}}
h1 .verdict{{vertical-align:.2em;margin-right:4px}}
h2{{font-size:17px;margin:40px 0 12px}}
p{{margin:0 0 12px;overflow-wrap:anywhere}}
.verdict{{display:inline-block;min-width:3.6em;padding:1px 9px;border-radius:999px;
text-align:center;font-size:12px;font-weight:650;letter-spacing:.02em;white-space:nowrap;
border:1.5px solid currentColor}}
.pass{{color:var(--pass)}}.warn{{color:var(--warn)}}.fail{{color:var(--fail)}}
.skip{{color:var(--skip)}}
.card{{background:var(--card);border:1px solid var(--line);border-radius:10px;overflow:hidden}}
.card+.card{{margin-top:12px}}
dl.facts{{display:grid;grid-template-columns:max-content 1fr;gap:5px 18px;margin:0;
padding:16px 18px}}
dl.facts dt{{color:var(--soft)}}
dl.facts dd{{margin:0;overflow-wrap:anywhere}}
details{{border-top:1px solid var(--line)}}
details:first-child{{border-top:0}}
summary{{display:flex;gap:14px;align-items:baseline;padding:11px 18px;cursor:pointer;
list-style:none}}
summary::-webkit-details-marker{{display:none}}
summary::before{{content:"\\25b8";color:var(--soft);flex:none;width:.8em}}
details[open]>summary::before{{content:"\\25be"}}
summary:focus-visible{{outline:2px solid var(--many);outline-offset:-2px}}
summary b{{min-width:7.5em}}
summary .sum{{color:var(--soft);flex:1;overflow-wrap:anywhere}}
summary .time{{color:var(--soft);font-variant-numeric:tabular-nums;font-size:13px;
white-space:nowrap}}
details.data,details.data:first-child{{border-top:1px solid var(--line)}}
details.data>summary{{color:var(--soft);font-size:13px;padding:8px 18px;gap:8px}}
figure.plain{{padding:0}}.plain figcaption{{padding:10px 18px}}
.scroll{{overflow-x:auto}}
table{{width:100%;border-collapse:collapse;font-size:14px}}
th,td{{padding:8px 12px;text-align:left;vertical-align:top;border-top:1px solid var(--line)}}
th:first-child,td:first-child{{padding-left:18px}}
th:last-child,td:last-child{{padding-right:18px}}
th{{color:var(--soft);font-weight:500;font-size:13px}}
thead th{{white-space:nowrap;vertical-align:bottom}}
.card>.scroll>table>thead:first-child th,table.top>thead th{{border-top:0}}
.checks td:first-child{{width:90px}}
.checks td:nth-child(2){{width:180px;overflow-wrap:anywhere}}
td.evidence{{overflow-wrap:anywhere;white-space:pre-wrap}}
.evidence .more{{display:block;margin-top:5px;color:var(--soft)}}
.evidence details{{border:0}}.evidence summary{{padding:5px 0 0;color:var(--soft);font-size:13px;
gap:6px}}
td .advice{{display:block;margin-top:4px;white-space:pre-wrap;
padding-left:1.4em;text-indent:-1.4em}}
td .advice::before{{content:"\\2192\\00a0";color:var(--soft);display:inline-block;
width:1.4em;text-indent:0}}
.number{{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}}
code,.evidence .more{{font:12.5px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,
"DejaVu Sans Mono",monospace}}
td code{{overflow-wrap:anywhere}}
figure{{margin:0;padding:14px 12px 10px}}
svg{{display:block;width:100%;height:auto}}
svg text{{fill:var(--soft);
font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}}
svg .grid{{stroke:var(--line)}}
svg path,svg polyline{{fill:none;stroke-linejoin:round}}
svg .one{{stroke:var(--one);stroke-width:6;stroke-opacity:.45}}
svg .many{{stroke:var(--many);stroke-width:2}}
svg .promise{{stroke:var(--soft);stroke-width:1.25;stroke-dasharray:2 4}}
svg .curve{{stroke:currentColor;stroke-width:2}}
svg .dot{{fill:currentColor}}
svg text.name{{fill:currentColor;font-weight:600}}
svg .next{{stroke:currentColor;stroke-width:1.75;stroke-dasharray:5 4}}
.s1{{color:var(--s1)}}.s2{{color:var(--s2)}}.s3{{color:var(--s3)}}
.s4{{color:var(--s4)}}.s5{{color:var(--s5)}}.s6{{color:var(--s6)}}
.nv{{color:var(--nv)}}.pix{{color:var(--pix)}}.pxb{{color:var(--pxb)}}
.phb{{color:var(--phb)}}.node{{color:var(--node)}}.sys,.other{{color:var(--sys)}}
svg .link{{stroke:currentColor;stroke-width:2}}
svg .link.nv{{stroke-width:3}}
svg .link.apart{{stroke-dasharray:6 5}}
svg .gpu{{fill:var(--card);stroke:var(--ink);stroke-width:1.5}}
svg text.clear{{stroke:var(--card);stroke-width:5px;paint-order:stroke}}
svg text.on{{fill:var(--ink);font-weight:600}}
svg text.halo{{fill:currentColor;font-weight:600;stroke:var(--card);stroke-width:6px;
paint-order:stroke;stroke-linejoin:round}}
figcaption{{display:flex;flex-wrap:wrap;gap:6px 22px;color:var(--soft);font-size:13px;
padding:6px 8px}}
.key{{display:inline-block;width:22px;margin-right:7px;vertical-align:middle}}
.key.one{{height:6px;background:var(--one);opacity:.55;border-radius:3px}}
.key.many{{height:2px;background:var(--many)}}
.key.next{{border-top:2px dashed currentColor}}
.between{{display:flex;flex-wrap:wrap;align-items:center;gap:8px 28px}}
.between svg{{flex:1 1 260px;margin:0 auto}}
.between ul{{flex:1 1 240px;list-style:none;margin:0;padding:6px 8px;font-size:14px}}
.between li{{padding:5px 0;display:flex;gap:10px}}
.between li .line{{flex:none;width:26px;margin-top:.72em;border-top:3px solid currentColor;
height:0}}
.between li .line.apart{{border-top-style:dashed}}
.between li small{{display:block;color:var(--soft);font-size:13px}}
.matrix td,.matrix th{{text-align:center;padding:7px 6px;font-variant-numeric:tabular-nums;
white-space:nowrap}}
.matrix tbody th{{text-align:left;padding-left:18px}}
.matrix small{{display:block;color:var(--soft);font-size:11px}}
.matrix td{{background:rgb(var(--tint)/var(--heat,0))}}
.matrix td.low{{box-shadow:inset 0 0 0 2px var(--warn)}}
.rungs td:nth-child(2){{min-width:190px}}
.rungs svg{{height:8px;margin:7px 0 4px;width:100%}}
.rungs .bar{{fill:var(--one);opacity:.75}}.rungs .best .bar{{fill:var(--many);opacity:1}}
.rungs small{{display:block;color:var(--soft);font-size:12.5px;overflow-wrap:anywhere}}
.pill{{display:inline-block;border-radius:999px;padding:0 8px;font-size:12px;font-weight:600;
color:var(--many);border:1.5px solid currentColor;white-space:nowrap}}
footer{{margin-top:40px;color:var(--soft);font-size:13px}}
@media(max-width:620px){{main{{padding:24px 12px 48px}}h1{{font-size:21px}}
dl.facts{{grid-template-columns:1fr;gap:0}}dl.facts dd{{margin-bottom:8px}}
summary{{flex-wrap:wrap;gap:4px 10px;padding:11px 14px}}summary b{{min-width:0}}
summary .sum{{flex-basis:100%;order:1;padding-left:1.4em}}
.checks,.checks tbody{{display:block}}
.checks tr{{display:flex;flex-wrap:wrap;gap:2px 10px;border-top:1px solid var(--line);
padding:10px 14px}}
.checks td,.checks td:first-child,.checks td:nth-child(2){{border:0;padding:0;width:auto}}
.checks td:nth-child(2){{font-weight:600}}.checks td.evidence{{flex-basis:100%}}
figure{{overflow-x:auto}}svg.wide{{min-width:580px}}}}
@page{{margin:14mm 13mm}}
@media print{{:root{{color-scheme:light;--bg:#fff;--ink:#000;--soft:#444;--line:#bbb}}
body{{font-size:10.5pt}}main{{max-width:none;padding:0}}
*{{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
summary::before{{display:none}}h2,summary{{break-after:avoid}}h2{{margin-top:22px}}
figure,tr,dl,.matrix{{break-inside:avoid}}.card,.scroll{{overflow:visible}}
details::details-content{{content-visibility:visible;display:block;height:auto}}
tr:has(details){{break-inside:auto}}footer{{margin-top:16px}}details.data{{display:none}}}}
"""
