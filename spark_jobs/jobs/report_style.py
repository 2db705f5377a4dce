"""Style and script of the report page: light and dark as the reader's system is set."""

STYLE = """
:root{color-scheme:light dark;--ink:#1d2530;--quiet:#5d6b7c;--page:#f4f6f8;--card:#fff;
--line:#dfe4ea;--mark:#2f6fb0;--warn:#a8480b;--warnbg:#fdf0e6}
@media (prefers-color-scheme:dark){:root{--ink:#e4e9ef;--quiet:#97a4b3;--page:#12161b;
--card:#1b2128;--line:#2f3842;--mark:#6aa9e6;--warn:#f0a36b;--warnbg:#33241a}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:26px;margin:0}h2{font-size:18px;margin:0 0 10px}h3{font-size:15px;margin:18px 0 6px}
header p,.quiet,summary span,figcaption{color:var(--quiet)}
header p{margin:2px 0 18px;overflow-wrap:anywhere}
.tiles{display:flex;flex-wrap:wrap;gap:10px;margin-bottom:14px}
.tile{flex:1 1 104px;background:var(--card);border:1px solid var(--line);border-radius:8px;
padding:10px 12px}
.tile b{display:block;font-size:18px;font-variant-numeric:tabular-nums;white-space:nowrap}
.tile.small{flex-basis:152px}.tile.small b{font-size:15px;line-height:28px;white-space:nowrap}
.tile span{font-size:13px;color:var(--quiet)}
.tile.warn{background:var(--warnbg);border-color:var(--warn)}.tile.warn b{color:var(--warn)}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px 16px;
margin-bottom:14px}
figure{margin:0 0 8px;overflow-x:auto}figcaption{font-size:13px;margin-bottom:2px}
.chart{width:100%;min-width:480px;height:auto;display:block}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr));gap:16px}
.pair .chart{min-width:320px}
.mark{fill:var(--mark)}.mark:hover{opacity:.7}.grid{stroke:var(--line);stroke-width:1}
.tick,.name{fill:var(--quiet);font-size:11px}.name{fill:var(--ink)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{padding:5px 6px;border-bottom:1px solid var(--line);text-align:left;vertical-align:top;
white-space:nowrap}
td:last-child{white-space:normal}
th{cursor:pointer;color:var(--quiet);font-weight:600;position:sticky;top:0;background:var(--card)}
th[aria-sort]::after{content:" \\2191"}th[aria-sort=descending]::after{content:" \\2193"}
td.n,th.n{text-align:right}td.n{font-variant-numeric:tabular-nums}
tbody tr:hover{background:color-mix(in srgb,var(--mark) 8%,transparent)}
a{color:var(--mark)}code{font:12.5px ui-monospace,"DejaVu Sans Mono",monospace;
overflow-wrap:anywhere}
input{font:inherit;padding:6px 10px;margin-bottom:10px;width:280px;max-width:100%;
border:1px solid var(--line);border-radius:6px;background:var(--page);color:inherit}
summary{cursor:pointer;overflow-wrap:anywhere}details[open]>summary{margin-bottom:10px}
.spark{display:block}
@media print{details::details-content{content-visibility:visible}.card{break-inside:avoid}}
"""

SCRIPT = """
'use strict';
for (const th of document.querySelectorAll('th')) {
  th.addEventListener('click', () => {
    const table = th.closest('table'), body = table.tBodies[0], column = th.cellIndex;
    const up = th.getAttribute('aria-sort') === 'descending';
    for (const other of th.parentNode.cells) other.removeAttribute('aria-sort');
    th.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const key = row => row.cells[column].dataset.sort || row.cells[column].textContent;
    const order = (a, b) => key(a).localeCompare(key(b), undefined, {numeric: true});
    const rows = [...body.rows].sort((a, b) => up ? order(a, b) : order(b, a));
    body.append(...rows);
  });
}
const search = document.getElementById('search'), queues = document.getElementById('queues');
if (search) search.addEventListener('input', () => {
  const text = search.value.toLowerCase();
  for (const row of queues.tBodies[0].rows) {
    const name = row.cells[0].textContent + ' ' + row.cells[1].textContent;
    row.hidden = !name.toLowerCase().includes(text);
  }
});
const show = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) { target.open = true; target.scrollIntoView(); }
};
addEventListener('hashchange', show);
show();
"""
