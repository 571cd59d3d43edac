"""How the report looks: its style sheet, its small script, how numbers are written, and small pieces of HTML."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

DASH = "&ndash;"
"""What stands for a number that is missing or not finite."""

LIGHT = ("#0035b9", "#da7109", "#439e6b", "#9c4990", "#4a2b00", "#987bea", "#0d373c", "#666464")
DARK = ("#7297f4", "#e24212", "#45f182", "#ef89b7", "#ece229", "#8f38ff", "#aae1ff", "#856d6d")
"""Chosen to stay apart under protanopia, deuteranopia and tritanopia, at 3:1 or more against the page."""
TONES = len(LIGHT)
"""How many colours there are; a ninth method wears the first again, with another marker."""


def esc(value: Any) -> str:
    """Any value as text that is safe in HTML and in a quoted attribute; None is a dash."""
    return DASH if value is None else html.escape(str(value), quote=True)


def num(value: Any) -> float:
    """A number from JSON; NaN for anything that is not one."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def mean(values: Iterable[float]) -> float:
    """The mean; NaN when there is nothing to average or when any value is NaN."""
    items = list(values)
    return sum(items) / len(items) if items else math.nan


def spread(values: Iterable[float]) -> float:
    """The sample standard deviation; NaN for fewer than two values."""
    items = list(values)
    if len(items) < 2:
        return math.nan
    centre = mean(items)
    return math.sqrt(sum((v - centre) ** 2 for v in items) / (len(items) - 1))


def fixed(value: float, digits: int = 1) -> str:
    """A number with fixed decimals, or a dash."""
    return f"{value:.{digits}f}" if math.isfinite(value) else DASH


def pct(value: float) -> str:
    """A share as a percentage without its sign: 0.8123 is 81.2."""
    return fixed(value * 100)


def size(value: float) -> str:
    """Bytes for people, in powers of 1000."""
    if not math.isfinite(value):
        return DASH
    for unit in ("B", "kB", "MB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB" if value < 1000 else f"{value:.0f} GB"


def words(items: Iterable[Any]) -> str:
    """Escaped items as prose: `a, b and c`."""
    parts = [esc(i) for i in items]
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts) or DASH


def plural(n: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{n} {noun}{'s' * (n != 1)}"


def span(values: Iterable[Any], form: str = "g") -> str:
    """The range of numbers: `20` or `5 to 20`."""
    found = sorted({v for v in map(num, values) if math.isfinite(v)})
    return DASH if not found else f"{found[0]:{form}}" + f" to {found[-1]:{form}}" * (len(found) > 1)


def plain(value: Any) -> str:
    """JSON in words, for facts whose form is not fixed."""
    if isinstance(value, Mapping):
        return "; ".join(f"{k}: {plain(v)}" if isinstance(v, Mapping) else f"{k} {plain(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    return "\u2013" if value is None or value != value else str(value)


def facts(pairs: Iterable[tuple[str, Any]]) -> str:
    """A list of names and values."""
    return "<dl>" + "".join(f"<dt>{esc(k)}</dt><dd>{esc(plain(v))}</dd>" for k, v in pairs) + "</dl>"


def table(label: str, head: Sequence[tuple[str, str]], rows: Iterable[str], cls: str = "") -> str:
    """A table that scrolls by itself; `head` is (HTML, class), `rows` are cells as HTML."""
    cells = "".join(f'<th scope="col" class="{c}">{text}</th>' for text, c in head)
    body = "".join(f"<tr>{r}</tr>" for r in rows)
    inner = f'<table class="{cls}"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{esc(label)}">{inner}</div>'


def details(title: str, more: str, body: str, is_open: bool = False) -> str:
    """A part that folds; `title` and `more` are plain text."""
    start = "<details open>" if is_open else "<details>"
    return f"{start}<summary>{esc(title)} <span>{esc(more)}</span></summary>{body}</details>"


def views(selections: Mapping[str, str], draw: Callable[[str], str]) -> str:
    """One panel per selection (name by key): tabs with JavaScript, one under the other without."""
    out = []
    for key, name in selections.items():
        start = f'<div class="view" data-view="{esc(key)}" data-name="{esc(name)}">'
        out.append(f"{start}<h3>{esc(name)}</h3>{draw(key)}</div>")
    return f'<div class="views">{"".join(out)}</div>'


def message(name: str, cost: Mapping[str, Any], most: int = 200) -> str:
    """What one client sends in one round: a folded table of names, shapes and bytes."""
    sent = cost.get("message") or []
    up, down = (size(num(cost.get(f"{way}_bytes_per_client"))).replace(DASH, "?") for way in ("up", "down"))
    rows = []
    for m in sent[:most]:
        shape = " &times; ".join(esc(n) for n in m.get("shape") or ()) or "one number"
        cells = f'<th scope="row">{esc(m.get("group"))}</th><td><code>{esc(m.get("name"))}</code></td>'
        cells += f"<td>{shape}</td><td>{esc(m.get('dtype'))}</td>"
        rows.append(f'{cells}<td class="num">{span([m.get("bytes")], ",.0f")}</td>')
    head = [("Group", ""), ("Name", ""), ("Shape", ""), ("Type", ""), ("Bytes", "num")]
    body = table(f"What left the client: {name}", head, rows) if rows else "<p>Nothing left the client.</p>"
    body += f"<p>{len(sent) - most} more are not shown.</p>" * (len(sent) > most)
    body += "".join(f"<p>{promise(card)}</p>" for card in cost.get("filters") or ())
    return details(name, f"{up} up, {down} down per client and round, {plural(len(sent), 'tensor')} sent", body)


def promise(card: Mapping[str, Any]) -> str:
    """What a message filter says of the run, in one paragraph: its epsilon, against whom, and what that assumes."""
    said = f"<b>{esc(card.get('filter'))}</b>"
    if "mechanism" in card:
        said += f": {esc(card['mechanism'])}."
    if "epsilon" in card:
        said += f" Epsilon {fixed(num(card['epsilon']), 2)} at delta {esc(card.get('delta'))}."
    if "protects" in card:
        said += f" Protects {esc(card['protects'])}."
    return f"{said} {esc(card.get('assumes', ''))}".rstrip()


def setup(name: str, run: Mapping[str, Any]) -> str:
    """A run's environment, timings and configuration, folded."""
    results = run["results"]
    known = {"command": results.get("command"), **(run.get("env") or {}), **(results.get("timings") or {})}
    config = json.dumps(run.get("config") or {}, indent=1, ensure_ascii=False)
    body = f'{facts(known.items())}<pre tabindex="0">{esc(config)}</pre>'
    place = "/".join(PurePath(str(run.get("path", ""))).parts[-2:])  # not the whole path: reports are passed on
    return details(f"{name}, seed {results.get('seed')}", place, body)


def _palette(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{i}:{c};" for i, c in enumerate(colours))


_BASE = """
*{box-sizing:border-box}html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;overflow-wrap:anywhere}
main,header,footer{max-width:70rem;margin:0 auto;padding:0 1.25rem}header{padding-top:2.5rem}
h1{font-size:clamp(1.5rem,1.1rem + 2vw,2.1rem);line-height:1.2;letter-spacing:-.02em;margin:0 0 .6rem;
text-wrap:balance}h2{font-size:1.25rem;letter-spacing:-.01em;margin:0 0 .35rem}
h3{font-size:1rem;margin:1.4rem 0 .5rem}p{margin:.4rem 0 .9rem;max-width:46rem}.lede{font-size:1.08rem}
.muted,figcaption,footer{color:var(--soft);font-size:.9rem}
section{margin-top:2.2rem;padding-top:1.9rem;border-top:1px solid var(--line)}a{color:var(--link)}
nav ul,.best-of,.legend{list-style:none;margin:0;padding:0}
nav ul{display:flex;flex-wrap:wrap;gap:.15rem 1.1rem;margin-top:1.3rem;font-size:.92rem}
nav a{display:inline-block;padding:.25rem 0}
.best-of{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(15rem,100%),1fr));gap:.8rem;margin:1.2rem 0 0}
.best-of li{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:.8rem 1rem;
font-size:.93rem}
.best-of .figure{display:block;font-size:1.7rem;line-height:1.25;font-weight:650;letter-spacing:-.02em}
.best-of small{font-size:1rem;font-weight:400;color:var(--soft)}
.note{border-left:3px solid var(--warn);background:var(--card);padding:.6rem .9rem;margin:1rem 0;max-width:46rem}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:.6rem;background:var(--card);margin:.6rem 0}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{padding:.5rem .9rem;text-align:left;vertical-align:top;border-top:1px solid var(--line);max-width:18rem;
overflow-wrap:break-word}
thead th{border-top:0;font-size:.85rem;vertical-align:bottom;color:var(--soft);font-weight:600}
tbody th{font-weight:550}.num{text-align:right;white-space:nowrap}
thead .num{white-space:normal;min-width:6.5rem;max-width:11rem}
td small{display:block;color:var(--soft);font-size:.82em}td .pm{color:var(--soft)}.best{background:var(--mark)}
.best b{font-weight:750}td:not(.best) b{font-weight:inherit}
tbody tr:hover td:not(.best),tbody tr:hover th{background:var(--hover)}
th button{all:unset;cursor:pointer;border-radius:.2rem;color:inherit}
th button:hover{color:var(--ink);text-decoration:underline}
th button::after{content:"\\2195";position:absolute;opacity:.5}
th[aria-sort] button{color:var(--ink)}th[aria-sort=ascending] button::after{content:"\\2191";opacity:1}
th[aria-sort=descending] button::after{content:"\\2193";opacity:1}
:focus-visible,th button:focus-visible{outline:3px solid var(--focus);outline-offset:2px}
.scroll:focus-visible{outline-offset:-3px}
.tabs{display:inline-flex;flex-wrap:wrap;gap:.2rem;padding:.2rem;border:1px solid var(--line);border-radius:.55rem;
background:var(--card);margin:.4rem 0 .3rem}
.tabs button{font:inherit;font-size:.9rem;border:0;background:none;color:var(--soft);padding:.3rem .8rem;
border-radius:.4rem;cursor:pointer}.tabs button[aria-selected=true]{background:var(--ink);color:var(--bg)}
.tabbed>.view>h3{display:none}figure{margin:.8rem 0}.chart{display:block;width:100%;max-width:46rem;height:auto}
.chart text,.plot text{font-size:12.5px;fill:var(--soft)}.chart .grid,.strip .grid{stroke:var(--line)}
.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
.range{stroke:var(--c);stroke-width:1.5;opacity:.4}.mark{fill:var(--c);stroke:var(--bg);stroke-width:1}
.dots{fill:none;stroke:var(--c);stroke-width:6;stroke-linecap:round;opacity:.75}.mean{stroke:var(--ink);stroke-width:2}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(var(--least,10rem),100%),1fr));gap:.6rem 1.2rem;
margin:.4rem 0}.panels>div{max-width:30rem}.maps{--least:20rem}.panels h4{margin:0;font-size:.92rem;font-weight:600}
.panels h4 small{font-weight:400;color:var(--soft)}.panel{display:block;width:100%;height:auto}
.panel text{font-size:11px;fill:var(--soft)}.panel .grid{stroke:var(--line)}.bars{fill:var(--c)}
.glyphs{fill:none;stroke:var(--c);stroke-width:1.3;stroke-linecap:round}.glyphs.g0{stroke-width:4.5}
.bubble{fill:var(--c0)}.plot{display:block;margin:.6rem}
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1.2rem;font-size:.9rem;margin:.3rem 0}
.legend li{display:flex;align-items:center;gap:.45rem;max-width:100%}.swatch{flex:none;width:26px;height:14px}
.strip{display:block;width:168px;height:20px}
.axis{display:flex;justify-content:space-between;width:168px;font-weight:400}.strips td+td{min-width:190px}
details{border:1px solid var(--line);border-radius:.6rem;background:var(--card);margin:.6rem 0;padding:0 .9rem}
summary{cursor:pointer;padding:.65rem 0;font-weight:550}summary span{font-weight:400;color:var(--soft)}
details[open]{padding-bottom:.9rem}
pre{overflow:auto;max-height:28rem;font:.82rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
margin:.5rem 0;padding:.8rem;background:var(--bg);border:1px solid var(--line);border-radius:.4rem;overflow-wrap:normal}
code{font:.88em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
dl{display:grid;grid-template-columns:fit-content(40%) minmax(0,1fr);gap:.2rem 1.2rem;margin:.6rem 0;font-size:.92rem}
dt{color:var(--soft)}dd{margin:0;font-variant-numeric:tabular-nums}footer{padding-top:2.5rem;padding-bottom:3rem}
.vh{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
td,th,.scroll{position:relative}@media(max-width:640px){main,header,footer{padding-left:1rem;padding-right:1rem}
.chart text{font-size:19px}th,td{padding:.45rem .65rem}
.board tbody th{position:sticky;left:0;z-index:1;background:var(--card);max-width:8.5rem;
box-shadow:inset 0 1px var(--line)}}
@media print{.view[hidden]{display:block!important}.tabs,nav{display:none}.tabbed>.view>h3{display:block}
tr,figure{break-inside:avoid}}
"""

CSS = (
    ":root{color-scheme:light dark;--bg:#f8f9fb;--card:#fff;--ink:#171a21;--soft:#555c6b;--line:#dfe3ea;--link:#0b5cad;"
    "--mark:#e3f1e7;--hover:#f2f5f9;--focus:#0b5cad;--warn:#b45309;" + _palette(LIGHT) + "}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#101318;--card:#181c23;--ink:#e9ecf1;--soft:#a5adba;--line:#2c323d;"
    "--link:#8ac4ff;--mark:#1d3a2b;--hover:#20252e;--focus:#8ac4ff;--warn:#f0a94a;"
    + _palette(DARK)
    + "}}\n"
    + "".join(f".c{i}{{--c:var(--c{i})}}" for i in range(TONES))
    + _BASE
)
"""The style sheet: light and dark, down to the width of a phone."""

JS = """
(function(){'use strict';
var groups=Array.from(document.querySelectorAll('.views')).map(function(box){
  return {box:box,panels:Array.from(box.children).filter(function(p){return p.matches('.view')}),tabs:[]}
}).filter(function(g){return g.panels.length>1});
function show(name){groups.forEach(function(g){
  if(!g.panels.some(function(p){return p.dataset.view===name}))return;
  g.panels.forEach(function(p,i){
  var on=p.dataset.view===name;p.hidden=!on;
  g.tabs[i].setAttribute('aria-selected',on);g.tabs[i].tabIndex=on?0:-1})})}
function pick(t,name){
  var top=t.getBoundingClientRect().top;show(name);t.focus({preventScroll:true});
  window.scrollBy(0,t.getBoundingClientRect().top-top)}
function keys(g,i,e){
  var n=g.tabs.length,to={ArrowRight:(i+1)%n,ArrowLeft:(i+n-1)%n,Home:0,End:n-1}[e.key];
  if(to===undefined)return;
  e.preventDefault();pick(g.tabs[to],g.panels[to].dataset.view)}
groups.forEach(function(g,k){
  var bar=document.createElement('div');bar.className='tabs';bar.setAttribute('role','tablist');
  bar.setAttribute('aria-label','Which model is shown');
  g.panels.forEach(function(p,i){
    var t=document.createElement('button');t.type='button';t.id='tab-'+k+'-'+i;t.textContent=p.dataset.name;
    p.id='view-'+k+'-'+i;t.setAttribute('role','tab');t.setAttribute('aria-controls',p.id);
    p.setAttribute('role','tabpanel');p.setAttribute('aria-labelledby',t.id);
    t.addEventListener('click',function(){pick(t,p.dataset.view)});
    t.addEventListener('keydown',function(e){keys(g,i,e)});
    g.tabs.push(t);bar.appendChild(t)});
  g.box.classList.add('tabbed');g.box.insertBefore(bar,g.panels[0])});
if(groups.length)show(groups[0].panels[0].dataset.view);
function value(row,i){var c=row.cells[i];return c.dataset.v===undefined?c.textContent.trim():c.dataset.v}
function compare(a,b,numeric,sign){
  if(!numeric)return sign*a.localeCompare(b,undefined,{numeric:true});
  if(a===''||b==='')return (a==='')-(b==='');
  return sign*(Number(a)-Number(b))}
function sort(table,heads,i){
  var th=heads[i],numeric=th.classList.contains('num'),was=th.getAttribute('aria-sort');
  var down=was?was==='ascending':numeric;
  heads.forEach(function(h){h.removeAttribute('aria-sort')});
  th.setAttribute('aria-sort',down?'descending':'ascending');
  var body=table.tBodies[0],rows=Array.from(body.rows);
  rows.sort(function(a,b){return compare(value(a,i),value(b,i),numeric,down?-1:1)});
  rows.forEach(function(r){body.appendChild(r)})}
document.querySelectorAll('table.sortable').forEach(function(table){
  var heads=Array.from(table.tHead.rows[0].cells);
  heads.forEach(function(th,i){
    var b=document.createElement('button');b.type='button';
    while(th.firstChild)b.appendChild(th.firstChild);
    th.appendChild(b);b.addEventListener('click',function(){sort(table,heads,i)})})});
})();
"""
"""The script: tabs between the last and the selected round, and sortable columns. The page reads without it."""


def page(title: str, head: str, sections: Mapping[str, str]) -> str:
    """The whole file: `head` and the sections by heading are HTML, `title` is plain text."""
    links = "".join(f'<li><a href="#s{i}">{name}</a></li>' for i, name in enumerate(sections))
    body = "".join(f'<section id="s{i}"><h2>{n}</h2>{part}</section>' for i, (n, part) in enumerate(sections.items()))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{esc(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{CSS}</style></head><body><header><h1>{esc(title)}</h1>{head}"
        f'<nav aria-label="Contents"><ul>{links}</ul></nav></header><main>{body}</main>'
        f"<footer>Made by acclimate from the JSON of run folders.</footer><script>{JS}</script></body></html>\n"
    )
