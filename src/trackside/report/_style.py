"""The style of the page: light and dark, on a phone, and on paper."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1b2430; --dim: #5c6875; --line: #dfe4ea;
  --good: #1f8a5b; --bad: #c8322b; --warn: #b06f00; --mark: #3566c0; --band: #1f8a5b2e; --curve: #1f8a5b;
  --s0: #b3261e; --s1: #dd5b45; --s2: #f0a04b; --s3: #f5d58a; --s4: #cfe6c8; --s5: #a5d3ab; --s-: #e6e9ed; }
@media (prefers-color-scheme: dark) { :root { --ground: #12171d; --card: #1a2129; --ink: #e4e9ee; --dim: #97a3b0;
  --line: #2c3640; --good: #35b27b; --bad: #f07a70; --warn: #f0b03f; --mark: #6f9bf0; --band: #35b27b38;
  --curve: #35b27b; --s0: #ff6a5e; --s1: #d9583f; --s2: #b9772c; --s3: #8a7433; --s4: #35594a; --s5: #24453a;
  --s-: #2a323b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 20px 16px 48px; }
header h1 { font-size: 1.5rem; line-height: 1.2; margin: 0 0 2px; }
header p { margin: 0; color: var(--dim); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px;
  margin-top: 16px; }
h2 { font-size: 1.02rem; margin: 0 0 10px; }
h3 { font-size: .92rem; margin: 18px 0 6px; }
.dim, .note { color: var(--dim); } .note { font-size: .86rem; margin: 8px 0 0; }
#verdict { border-left: 5px solid var(--good); } #verdict.bad { border-left-color: var(--bad); }
#verdict .headline { font-size: 1.22rem; line-height: 1.35; font-weight: 650; margin: 0 0 6px; }
#verdict .summary { margin: 0; color: var(--dim); }
#verdict ol { margin: 14px 0 0; padding: 0; list-style: none; }
#verdict li { border-top: 1px solid var(--line); padding: 10px 0 8px; }
#verdict li:last-child { padding-bottom: 0; }
.title { font-weight: 600; } .title .kind { font-weight: 500; font-size: .78rem; color: var(--bad);
  border: 1px solid currentColor; border-radius: 999px; padding: 1px 8px; margin-right: 6px; white-space: nowrap; }
#verdict ul { margin: 4px 0; padding-left: 18px; color: var(--dim); font-size: .92rem; list-style: disc; }
#verdict ul li { border: 0; padding: 0; }
.look { margin: 4px 0 0; } .look::before { content: "→ "; color: var(--mark); font-weight: 700; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(96px, 1fr)); gap: 8px; margin-top: 16px; }
.figures div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 9px 11px; }
.figures b { display: block; font-size: 1.1rem; white-space: nowrap; font-variant-numeric: tabular-nums; }
.figures span { color: var(--dim); font-size: .82rem; }
.attempt { display: grid; grid-template-columns: 6.5rem 1fr; gap: 4px 12px; align-items: center; margin: 6px 0; }
.attempt .label { font-size: .86rem; line-height: 1.25; } .attempt .label small { color: var(--dim); display: block; }
.bar { display: flex; height: 26px; border-radius: 5px; overflow: hidden; background: var(--s-); }
.bar span { display: block; min-width: 1px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 10px 0 0; padding: 0; list-style: none;
  font-size: .86rem; } .legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px;
  margin-right: 6px; vertical-align: -1px; } .legend b { font-weight: 600; font-variant-numeric: tabular-nums; }
.plot { display: grid; grid-template-columns: auto 1fr; gap: 0 8px; }
.plot .y { position: relative; min-width: 3.6rem; font-size: .74rem; color: var(--dim); }
.plot .y span { position: absolute; right: 0; transform: translateY(-50%); white-space: nowrap; }
.plot svg { width: 100%; display: block; border-bottom: 1px solid var(--line); }
.plot .x { grid-column: 2; display: flex; justify-content: space-between; gap: 12px; font-size: .74rem;
  color: var(--dim); padding-top: 3px; }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .band { fill: var(--band); stroke: none; }
svg .curve { fill: none; stroke: var(--curve); stroke-width: 1.6; stroke-linejoin: round; }
svg .loss { fill: none; stroke: var(--mark); stroke-width: 1.6; stroke-linejoin: round; }
svg path, svg line { vector-effect: non-scaling-stroke; }
svg .checkpoint { stroke: #3566c0; } svg .restore { stroke: #6aa3e8; } svg .validation { stroke: #0f8f9e; }
svg .restart { stroke: var(--bad); stroke-width: 2; } svg .end { stroke: var(--bad); stroke-dasharray: 4 3; }
svg .error { stroke: #8e2c66; } svg .lost { stroke: var(--warn); }
svg .checkpoint, svg .restore, svg .validation { stroke-opacity: .55; }
.i-checkpoint { background: #3566c0; } .i-restore { background: #6aa3e8; } .i-validation { background: #0f8f9e; }
.i-restart, .i-end { background: var(--bad); } .i-error { background: #8e2c66; } .i-lost { background: var(--warn); }
.heat { display: grid; grid-template-columns: minmax(5rem, max-content) 1fr; gap: 3px 10px; align-items: stretch; }
.heat .name { font-size: .84rem; max-width: 14rem; align-self: center; }
.heat svg { width: 100%; height: 26px; display: block; border-radius: 3px; }
.heat .x { grid-column: 2; display: flex; justify-content: space-between; font-size: .74rem; color: var(--dim); }
.s0 { fill: var(--s0); background: var(--s0); } .s1 { fill: var(--s1); background: var(--s1); }
.s2 { fill: var(--s2); background: var(--s2); } .s3 { fill: var(--s3); background: var(--s3); }
.s4 { fill: var(--s4); background: var(--s4); } .s5 { fill: var(--s5); background: var(--s5); }
.s- { fill: var(--s-); background: var(--s-); }
.part { display: grid; grid-template-columns: minmax(7rem, 15rem) 1fr 9.5rem; gap: 2px 10px; align-items: center;
  margin: 4px 0; font-size: .9rem; } .part .track { background: var(--s-); border-radius: 4px; height: 14px; }
.part .track i { display: block; height: 100%; border-radius: 4px; background: var(--mark); min-width: 1px; }
.part .num { font-variant-numeric: tabular-nums; text-align: right; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; }
th { text-align: left; color: var(--dim); font-weight: 500; } th, td { padding: 4px 10px 4px 0; vertical-align: top;
  border-bottom: 1px solid var(--line); } tr:last-child td { border-bottom: 0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.whole { white-space: nowrap; } td.name { min-width: 10rem; }
td .spark { width: 120px; height: 22px; display: block; }
.bad { color: var(--bad); } .ok { color: var(--good); } section.bad { color: inherit; }
code { font: .92em ui-monospace, "DejaVu Sans Mono", monospace; }
footer { color: var(--dim); font-size: .82rem; margin-top: 20px; }
@media (max-width: 640px) { .opt { display: none; } section { padding: 14px 12px; } main { padding: 14px 10px 32px; }
  .attempt { grid-template-columns: 1fr; } .part { grid-template-columns: 1fr auto; }
  .part .track { grid-column: 1 / -1; } th, td { padding-right: 6px; }
  td.name { min-width: 8rem; } }
@media print { :root { color-scheme: light; } body { background: #fff; font-size: 10.5pt; }
  main { max-width: none; padding: 0; } section, .figures div { border-color: #bbb; break-inside: avoid; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; } tr { break-inside: avoid; } }
"""
