"""The report's style sheet: one column of text, two of charts where there is room, light and dark."""

# Okabe and Ito's colours, which colour-blind readers tell apart; lighter ones on a dark page.
LIGHT = ("#0072b2", "#d55e00", "#00875f", "#7a7f87", "#b8568f", "#b87a00")
DARK = ("#5bb8f0", "#ff8f4d", "#35cfa3", "#9aa1ab", "#e79ac6", "#f0b93a")
DASHES = ("none", "none", "none", "2 3", "7 3", "9 3 2 3")
# Where there are more systems than colours, these come round again with other dashes.
AGAIN = ("4 2", "12 3", "1 2", "6 2 1 2")

_RULES = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 2rem; line-height: 1.2; letter-spacing: -.015em; margin: 0 0 .3em; }
h2 { font-size: 1.3rem; letter-spacing: -.01em; margin: 2.6em 0 .5em; }
h3 { font-size: 1rem; margin: 0 0 .6em; }
section > h3 { margin-top: 1.7em; font-size: 1.08rem; }
p { margin: .5em 0; max-width: 76ch; }
.lead, .quiet { color: var(--quiet); }
.quiet { font-size: .88rem; }
.finding { border-left: 4px solid var(--s0); background: var(--card); border-radius: 0 8px 8px 0;
  padding: 14px 18px; margin: 14px 0; max-width: none; }
.finding p { margin: .2em 0; max-width: 90ch; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 22px 0; }
.fact { background: var(--card); border-radius: 8px; padding: 12px 16px; }
.fact b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; letter-spacing: -.01em; }
.fact span { color: var(--quiet); font-size: .85rem; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 20px; }
.grid3 { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 20px; }
.card { background: var(--card); border-radius: 10px; padding: 16px 18px; min-width: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 10px; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--quiet); font-weight: 600; }
td small { color: var(--quiet); display: block; font-size: .76rem; line-height: 1.2; }
td.best { font-weight: 700; }
td.best small { font-weight: 400; }
table.run td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
table.run td:first-child { color: var(--quiet); width: 32%; max-width: 16em; }
code { font: .86em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: var(--code); border-radius: 8px; padding: 12px 16px; overflow-x: auto; margin: .6em 0; }
ol, ul { padding-left: 1.5em; margin: .3em 0; }
.goods { font-size: .88rem; line-height: 1.45; }
.goods li { margin: .28em 0; overflow-wrap: anywhere; }
.goods time { color: var(--quiet); font-size: .8rem; white-space: nowrap; }
.tag { font-size: .74rem; border-radius: 4px; padding: 1px 6px; margin-left: 4px; white-space: nowrap; }
.tag.hit { background: var(--s2); color: var(--page); }
.tag.again { border: 1px solid var(--rule); color: var(--quiet); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 0; margin: 8px 0 12px;
  font-size: .88rem; }
.legend li { display: flex; align-items: center; gap: 7px; }
.pair { margin: 14px 0 34px; }
.chart { display: block; width: 100%; max-width: 620px; height: auto; overflow: visible; }
.chart text { font-size: 12px; fill: var(--quiet); }
.chart .tick, .chart .axis { text-anchor: middle; }
.chart .left, .chart .name { text-anchor: end; }
.chart .axis { fill: var(--ink); }
.chart .name, .chart .value { fill: var(--ink); font-size: 13px; }
.chart .grid { stroke: var(--rule); stroke-width: 1; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.whisker { stroke-width: 1.4; opacity: .6; }
.whisker.wide { stroke-width: 5; opacity: .35; stroke-linecap: round; }
.mark { stroke: var(--card); stroke-width: 1; }
footer { margin-top: 3.5em; padding-top: 1.2em; border-top: 1px solid var(--rule); }
@media (max-width: 560px) { main { padding: 24px 14px 40px; } h1 { font-size: 1.55rem; } .card { padding: 12px; } }
@media print { body { font-size: 12px; } .card, .finding { break-inside: avoid; } }
"""
_PAPER = "--page:#fff; --ink:#1b1f24; --quiet:#5b6470; --rule:#dfe3e8; --card:#f5f7f9; --code:#eef1f4;"
_NIGHT = "--page:#14171b; --ink:#e6e9ed; --quiet:#9aa4b0; --rule:#333a43; --card:#1d2127; --code:#252a31;"


def dash(style: int) -> str:
    """The dashes of a system's line, by its place."""
    return DASHES[style] if style < len(DASHES) else AGAIN[(style // len(LIGHT) - 1) % len(AGAIN)]


def style_sheet(systems: int) -> str:
    """The whole of it, for so many systems."""
    light, dark = (
        f"{base} {' '.join(f'--s{n}:{colour};' for n, colour in enumerate(colours))}"
        for base, colours in ((_PAPER, LIGHT), (_NIGHT, DARK))
    )
    rules = "\n".join(
        f".line.s{n} {{ stroke: var(--s{n % len(LIGHT)}); stroke-dasharray: {dash(n)}; }} "
        f".whisker.s{n} {{ stroke: var(--s{n % len(LIGHT)}); }} .mark.s{n} {{ fill: var(--s{n % len(LIGHT)}); }}"
        for n in range(systems)
    )
    head = (
        f":root {{ color-scheme: light dark; {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    )
    return f"{head}{_RULES}{rules}\n"
