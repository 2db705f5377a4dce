// Tables: sorted by their heading, filtered, marked, and windowed when they are long.
//
// A column is {id, label, tip, cell(row), value(row), num, small, isOptional, isHidden}. `value` is
// what the column sorts by; a column without it does not sort. `small` columns stay on a phone.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import { repeat } from "./vendor/lit-html/directives/repeat.js";

export const WINDOW_FROM = 300; // rows; shorter tables are whole, so that the browser's find works
const OVERSCAN = 8;
export const MAX_ROWS = 80;
const NARROW = matchMedia("(max-width: 719px)");

/** The rows to render: those in view, some around, and the heights of the gaps before and after. */
export function rowsInView({ count, rowHeight, top, viewHeight }) {
  if (count <= WINDOW_FROM) return { first: 0, last: count, before: 0, after: 0 };
  const visible = Math.min(Math.ceil(viewHeight / rowHeight) + 2 * OVERSCAN, MAX_ROWS);
  const first = Math.max(0, Math.min(Math.floor(top / rowHeight) - OVERSCAN, count - visible));
  const last = Math.min(count, first + visible);
  return { first, last, before: first * rowHeight, after: (count - last) * rowHeight };
}

export function rowHeight(prefs) {
  if (NARROW.matches) return 70;
  return prefs.get("roomy") ? 42 : 33;
}

/** "-waiting" -> the column and the direction. */
export function parseSort(text, columns, fallback) {
  const chosen = text || fallback || "";
  const isDown = chosen.startsWith("-");
  const column = columns.find((each) => each.id === chosen.slice(isDown ? 1 : 0) && each.value);
  return { column, isDown };
}

export function sortRows(rows, { column, isDown }, keyOf) {
  if (!column) return rows;
  const sign = isDown ? -1 : 1;
  const decorated = rows.map((row) => [column.value(row), keyOf(row), row]);
  decorated.sort(([a, keyA], [b, keyB]) => {
    // What is unknown comes last in both directions.
    if (a === b || (a === null && b === undefined)) return keyA < keyB ? -1 : 1;
    if (a === null || a === undefined) return 1;
    if (b === null || b === undefined) return -1;
    return a < b ? -sign : sign;
  });
  return decorated.map((each) => each[2]);
}

// The order of the rows that a table showed last: while it is scrolled, they are the same array.
const sorted = new Map(); // id of the table -> {rows, column, isDown, result}

function sortOnce(id, rows, order, keyOf) {
  const known = sorted.get(id);
  if (known?.rows === rows && known.column === order.column?.id && known.isDown === order.isDown) return known.result;
  const result = sortRows(rows, order, keyOf);
  sorted.set(id, { rows, column: order.column?.id, isDown: order.isDown, result });
  return result;
}

/** Put the visible part of tables where the scrolled page is; call it on scroll and resize. */
export function watchScroll(invalidate) {
  addEventListener("scroll", invalidate, { passive: true });
  addEventListener("resize", invalidate, { passive: true });
  NARROW.addEventListener("change", invalidate);
}

/**
 * A table.
 * id: of the element; rows, columns; keyOf(row): a text that stays; label: its name.
 * sortKey: member of the query with the order, fallback: the order without it.
 * marks: a Set of keys, if rows can be marked; rowClass(row); empty: shown without rows.
 * onView(rows): is told the rows in view with each render.
 */
export function table(app, spec) {
  const { id, columns, keyOf, label, sortKey = "sort", fallback, marks, rowClass } = spec;
  const hidden = app.prefs.get("columns")[id] ?? {};
  const shown = columns.filter((column) => !(hidden[column.id] ?? column.isHidden));
  const order = parseSort(app.route.query[sortKey], columns, fallback);
  const rows = sortOnce(id, spec.rows, order, keyOf);
  if (!rows.length) return spec.empty ?? nothing;

  const height = rowHeight(app.prefs);
  const body = document.getElementById(id)?.tBodies[0];
  const top = body ? -body.getBoundingClientRect().top : 0;
  const view = rowsInView({ count: rows.length, rowHeight: height, top, viewHeight: innerHeight });
  const isWindowed = rows.length > WINDOW_FROM;
  const sort = (column) => {
    const isSame = order.column === column;
    const isDown = isSame ? !order.isDown : Boolean(column.num);
    app.setQuery({ [sortKey]: (isDown ? "-" : "") + column.id });
  };
  const mark = (key, isMarked) => {
    if (isMarked) marks.add(key);
    else marks.delete(key);
    app.invalidate();
  };
  const visibleRows = rows.slice(view.first, view.last);
  spec.onView?.(visibleRows);
  const areAllMarked = marks && rows.every((row) => marks.has(keyOf(row)));
  const markAll = (event) => {
    for (const row of rows) {
      if (event.target.checked) marks.add(keyOf(row));
      else marks.delete(keyOf(row));
    }
    app.invalidate();
  };

  const row = (each, at) => {
    const key = keyOf(each);
    return html`<tr role="row" class=${rowClass?.(each) ?? ""} aria-rowindex=${isWindowed ? view.first + at + 2 : nothing} data-key=${key}>
      ${marks
        ? html`<td role="cell" class="mark"><input type="checkbox" aria-label="mark ${key}" .checked=${marks.has(key)} @change=${(event) => mark(key, event.target.checked)} /></td>`
        : nothing}
      ${shown.map((column) => html`<td role="cell" class="${column.num ? "num" : ""} ${column.small ? "" : "wide"} ${column.css ?? ""}" data-label=${column.label}>${column.css === "name" ? html`<div class="named">${column.cell(each)}</div>` : column.cell(each)}</td>`)}
    </tr>`;
  };
  const sortable = columns.filter((column) => column.value);
  return html`
    ${sortable.length > 1
      ? html`<label class="narrow-sort">Order
          <select @change=${(event) => app.setQuery({ [sortKey]: event.target.value })}>
            ${sortable.flatMap((column) => {
              const orders = [false, true].map((isDown) => (isDown ? "-" : "") + column.id);
              const now = (order.isDown ? "-" : "") + (order.column?.id ?? "");
              return orders.map((value, down) => html`<option value=${value} ?selected=${value === now}>${column.label} ${down ? "↓" : "↑"}</option>`);
            })}
          </select></label>`
      : nothing}
    <div class="scroller" tabindex=${spec.isScrollable ? 0 : nothing}>
    <table id=${id} role="table" aria-label=${label} aria-rowcount=${isWindowed ? rows.length + 1 : nothing} class="${isWindowed ? "windowed" : ""} ${marks ? "marked" : ""}">
      <thead role="rowgroup"><tr role="row" aria-rowindex=${isWindowed ? 1 : nothing}>
        ${marks ? html`<th role="columnheader" class="mark"><input type="checkbox" aria-label="mark all" .checked=${areAllMarked} @change=${markAll} /></th>` : nothing}
        ${shown.map((column) => {
          const state = order.column === column ? (order.isDown ? "descending" : "ascending") : column.value ? "none" : nothing;
          return html`<th role="columnheader" scope="col" class="${column.num ? "num" : ""} ${column.css ?? ""}" aria-sort=${state} title=${column.tip ?? nothing}>${column.value
            ? html`<button type="button" class="sort" @click=${() => sort(column)}>${column.label}<span aria-hidden="true">${order.column === column ? (order.isDown ? "▾" : "▴") : ""}</span></button>`
            : column.label}</th>`;
        })}
      </tr></thead>
      <tbody role="rowgroup">
        ${view.before ? html`<tr aria-hidden="true" class="gap"><td .style=${`height:${view.before}px`}></td></tr>` : nothing}
        ${repeat(visibleRows, keyOf, row)}
        ${view.after ? html`<tr aria-hidden="true" class="gap"><td .style=${`height:${view.after}px`}></td></tr>` : nothing}
      </tbody>
    </table></div>`;
}

/** The menu that hides and shows columns. */
export function columnsMenu(app, id, columns) {
  const hidden = app.prefs.get("columns")[id] ?? {};
  const toggle = (column, isShown) => {
    const all = app.prefs.get("columns");
    app.prefs.set("columns", { ...all, [id]: { ...all[id], [column.id]: !isShown } });
    app.invalidate();
  };
  return html`<details class="menu" @keydown=${(event) => {
      if (event.key === "Escape") event.currentTarget.open = false;
    }}>
    <summary>Columns</summary>
    <div class="menu-body">
      ${columns.filter((column) => column.isOptional).map(
        (column) => html`<label><input type="checkbox" .checked=${!(hidden[column.id] ?? column.isHidden)} @change=${(event) => toggle(column, event.target.checked)} /> ${column.label}</label>`,
      )}
    </div>
  </details>`;
}
