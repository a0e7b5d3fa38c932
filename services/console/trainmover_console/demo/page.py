"""The report's page around its charts: layout and colours, light and dark."""

from __future__ import annotations

from string import Template
from typing import Final

from trainmover_console.report.style import STYLE

__all__ = ["PAGE"]

PAGE: Final = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TrainMover demo: $word</title>
<style>
"""
    + STYLE
    + """</style>
</head>
<body>
<h1>TrainMover demo: <span class="$css">$word</span></h1>
<p class="soft">$subtitle</p>
$problems
<div class="cards">$cards</div>
<h2>Loss of rank 0</h2>
<p><span class="key" style="background: var(--two); opacity: .5"></span>disturbed run
<span class="key" style="background: var(--one)"></span>undisturbed run, same seed. $equality</p>
<div class="wide">$loss</div>
<h2>Lateness</h2>
<p>How long a rank kept the others waiting in each step, from each rank's own duration of every
collective. Clocks of two machines are never compared.</p>
<div class="wide">$heat</div>
<h2>Timeline</h2>
<p>Which machine computed which rank, and when no step was completed because of a switch.
<span class="key" style="background: var(--one)"></span>computes
<span class="key" style="background: var(--two)"></span>computes, and leaves later
<span class="key" style="background: var(--bad)"></span>switch</p>
<div class="wide">$timeline</div>
<h2>Migrations</h2>
<p>The pause is the time from the last step before the switch to the first step after it, less one
median step, at the slowest stayer; "step to step" is the same time with nothing taken off. Phases
run beside training, except for what falls into the pause.</p>
<div class="wide">$moves</div>
<div class="wide">$close_ups</div>
<h2>What a restart would have taken</h2>
<p>$restart</p>
<h2>Events</h2>
<details><summary>The disturbed run, line by line</summary><div class="wide">$events</div></details>
</body>
</html>
"""
)
