"""How our pages look: layout and colours, light and dark; the charts take theirs from here."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["CHARTS", "STYLE", "flat"]

CHARTS: Final = """\
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg .label { text-anchor: end; } svg .tick { text-anchor: middle; }
svg .inside { fill: var(--page); } svg .note { fill: var(--ink); }
svg .axis { stroke: var(--soft); } svg .grid { stroke: var(--line); }
svg .mark { stroke: var(--phase); stroke-dasharray: 3 3; }
svg polyline { fill: none; } svg .run { stroke: var(--two); stroke-width: 5; stroke-opacity: .45; }
svg .reference { stroke: var(--one); stroke-width: 1.6; }
svg .heat { fill: var(--heat); stroke: var(--line); stroke-width: .3; }
svg .first-step, svg .computes { fill: var(--one); fill-opacity: .75; }
svg .phase { fill: var(--phase); }
svg .hurt { fill: var(--two); fill-opacity: .85; } svg .pause { fill: var(--bad); }
"""
"""What is inside of drawings."""

STYLE: Final = (
    """\
:root { color-scheme: light dark; --ink: #1c2128; --soft: #5b6470; --line: #d7dce2;
  --page: #ffffff; --card: #f5f7f9; --one: #0b6bcb; --two: #d9480f; --good: #1a7f37;
  --bad: #c62828; --heat: #d9480f; --phase: #8250df; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #98a2b0; --line: #343b45;
  --page: #12161b; --card: #1a2027; --one: #58a6ff; --two: #ff9d5c; --good: #4ac26b;
  --bad: #ff7b72; --heat: #ff9d5c; --phase: #c297ff; } }
body { margin: 0 auto; max-width: 1020px; padding: 24px 20px 60px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 34px 0 6px; }
p { margin: 4px 0 10px; max-width: 75ch; } .soft { color: var(--soft); }
.pass { color: var(--good); } .fail { color: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px;
  margin: 18px 0; }
.card { background: var(--card); border-radius: 8px; padding: 12px 14px; }
.card b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } svg { width: 100%; min-width: 640px; height: auto; display: block; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; } th { font-weight: 600; }
code { font-size: 13px; } .beside { width: 100%; } .beside th { white-space: nowrap; width: 1%; }
.beside td { min-width: 240px; }
h3 { font-size: 14px; margin: 18px 0 2px; }
.key { display: inline-block; width: 22px; height: 5px; margin: 0 5px 3px 12px; }
"""
    + CHARTS
)

_LIGHT: Final = dict(re.findall(r"(--\w+): (#\w+)", STYLE.split("@media")[0]))


def flat(css: str) -> str:
    """``css`` in the light colours, for readers that know no variables: all but browsers."""
    return re.sub(r"var\((--\w+)\)", lambda found: _LIGHT[found[1]], css)
