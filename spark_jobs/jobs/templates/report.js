'use strict';
for (const th of document.querySelectorAll('th')) {
  th.addEventListener('click', () => {
    const table = th.closest('table'), body = table.tBodies[0], column = th.cellIndex;
    const up = th.getAttribute('aria-sort') === 'descending';
    for (const other of th.parentNode.cells) other.removeAttribute('aria-sort');
    th.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const key = row => row.cells[column].dataset.sort || row.cells[column].textContent;
    // The numeric order of texts knows whole numbers only: no signs, no fractions.
    const isNumber = text => text !== '' && isFinite(text);
    const compare = (a, b) => isNumber(a) && isNumber(b) ? a - b : a.localeCompare(b, undefined, {numeric: true});
    const order = (a, b) => compare(key(a), key(b));
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
