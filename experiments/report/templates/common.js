"use strict";
// What every page's script stands on: elements, what is unpacked, downloads, menus, charts, tables.
const common = (() => {
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// ---------------------------------------------------------------- elements and text

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";
function drawn(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Where most of a text stands: its space may end one line, and its word begin the next.
const placeOf = (text) => [...text.getClientRects()].sort((one, other) => other.width - one.width)[0];

// Plotly reads labels as a kind of HTML.
const plotText = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const CONTROL_PICTURES = { "\n": "↵", "\t": "⇥", " ": "␣" };
// What turns the reading direction, and tokens that nobody would see.
const UNSEEN = /\p{Bidi_Control}|^\p{Cf}+$/gu;
// Spaces of other kinds, and ends of lines and pages that no key makes.
const UNUSUAL = /[\p{Z}\u0080-\u009f]+/gu;
const named = (unseen) => [...unseen].map((c) => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`).join(" ");
const visible = (token) => token === "" ? "∅" : token.replace(/[\u0000-\u0020\u007f]/g,
  (c) => CONTROL_PICTURES[c] ?? (c === "\u007f" ? "␡" : String.fromCharCode(0x2400 + c.charCodeAt(0)))).replace(UNUSUAL, named).replace(UNSEEN, named);

// Three digits, at most four after the point, as in the tables that Python writes.
function asFigure(value) {
  if (value === null || value === undefined) return "–";
  const rounded = Number(value.toPrecision(3)), small = Math.abs(rounded) < 0.01;
  const text = small ? rounded.toFixed(4) : String(Math.abs(rounded) >= 100 ? Math.round(rounded) : rounded);
  return (Number(text) === 0 ? "0" : text).replace("-", "−");
}

// What is nearly all is not all of it, nor is a little nothing.
// Single precision leaves a millionth of a whole open.
const wholePercent = (share) => share > 0 && share < 0.005 ? "<1%" : share < 1 - 1e-6 && share >= 0.995 ? ">99%" : `${Math.round(100 * share)}%`;

// ---------------------------------------------------------------- what stands in the page compressed

// Ten times as fast as Uint8Array.from, which makes a string of each character: of libraries half a second.
function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function inflated(id) {
  const bytes = bytesOf(document.getElementById(id).textContent);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const loading = {};
// A library runs when it is first asked for; the page's policy knows its digest or this script's nonce.
const { nonce } = document.currentScript;
function library(name) {
  return loading[name] ??= inflated(`library-${name}`).then((source) => void document.head.append(element("script", source, nonce ? { nonce } : {})));
}

// Each waits until its box comes near the window, or is shown or printed, and for its library.
const waiting = new Map();
const watcher = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) arrive(target);
}, { rootMargin: "300px" });
async function arrive(box) {
  watcher.unobserve(box);
  await library(waiting.get(box).name);
  drawWaiting(box);
}
function drawWaiting(box) {
  watcher.unobserve(box); // what was drawn for print arrives no more
  const { draw } = waiting.get(box) ?? {};
  waiting.delete(box);
  delete box.dataset.waiting;
  draw?.();
}
function whenSeen(box, name, draw) {
  waiting.set(box, { name, draw });
  box.dataset.waiting = "";
  watcher.observe(box);
}

// ---------------------------------------------------------------- downloads

function save(name, type, text) {
  saveBlob(name, new Blob([text], { type: `${type};charset=utf-8` }));
}

function saveBlob(name, blob) {
  const link = element("a", "", { download: name.replace(/[^\w.-]+/g, "-") });
  link.href = URL.createObjectURL(blob);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function saveCsv(name, header, rows) {
  const cell = (v) => v === null || v === undefined ? "" : /[",\r\n]/.test(v) ? `"${String(v).replace(/"/g, '""')}"` : String(v);
  save(`${name}.csv`, "text/csv", [header, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n");
}

// ---------------------------------------------------------------- drop-down menus

// Menus in which each one offers only what exists under the choices before it.
function menus(host, controls, exists, changed) {
  const chosen = controls.map((control) => control.value);
  function refresh() {
    host.replaceChildren();
    controls.forEach((control, i) => {
      const offered = control.options.filter(([value]) => exists([...chosen.slice(0, i), value]));
      if (!offered.some(([value]) => value === chosen[i]) && offered.length) chosen[i] = offered[offered.length - 1][0];
      const select = element("select", undefined, { name: control.name });
      for (const [value, label] of offered) {
        const option = element("option", label, { value });
        option.selected = value === chosen[i];
        select.append(option);
      }
      select.addEventListener("change", () => {
        chosen[i] = select.value;
        refresh();
        changed();
        $(`select[name="${control.name}"]`, host).focus();
      });
      const label = element("label", `${control.label} `);
      label.append(select);
      host.append(label);
    });
  }
  function choose(values) {
    values.forEach((value, i) => { chosen[i] = value; });
    refresh();
  }
  refresh();
  return { chosen, refresh, choose };
}

// One menu of [value, words] with its label: the box that holds both, and the menu.
function choice(name, label, options) {
  const select = element("select", undefined, { name }), box = element("label", `${label} `);
  select.append(...options.map(([value, words]) => element("option", words, { value })));
  box.append(select);
  return { box, select };
}

// ---------------------------------------------------------------- charts

// Plotly's error bars of a series with an interval; none of its points need have one.
const errorBars = ({ y, low, high }, look) => ({ type: "data", symmetric: false, ...look,
  array: high.map((h, i) => h === null ? 0 : h - y[i]), arrayminus: low.map((l, i) => l === null ? 0 : y[i] - l) });
// A line of one point would not be seen.
const linesOf = (x) => x.length === 1 ? "markers" : "lines";
const hoverText = (name) => plotText(name).replace(/%/g, "%\u200b");

const probe = document.body.appendChild(element("span", "", { class: "hidden", "aria-hidden": "true" }));
// To ask for a colour has the browser work out every style: once for all charts, until the theme changes.
let colours = {};
const forgetColours = () => { colours = {}; };
const resolve = (name, alpha = 1) => colours[`${name} ${alpha}`] ??= resolved(name, alpha);
function resolved(name, alpha) {
  probe.style.color = `color-mix(in srgb, var(${name}) ${100 * alpha}%, transparent)`;
  const parts = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
  const channels = getComputedStyle(probe).color.startsWith("color(") ? parts.slice(0, 3).map((c) => Math.round(255 * c)) : parts.slice(0, 3);
  return `rgba(${channels.join(",")},${parts[3] ?? 1})`;
}

const CONFIG = { responsive: true, displayModeBar: false };
const CIVIDIS = ["#00204d", "#00306f", "#2a406c", "#48526b", "#5e626e", "#727374", "#878479", "#9e9677", "#b6a971", "#d0be67", "#ead357", "#fee838"]
  .map((colour, i, all) => [i / (all.length - 1), colour]);

function plotLayout(xTitle) {
  const axis = { gridcolor: resolve("--grid"), linecolor: resolve("--line"), zeroline: false, automargin: true, ticks: "outside",
    ticklen: 4, tickcolor: resolve("--line") };
  return { margin: { l: 42, r: 8, t: 8, b: 38 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 11, color: resolve("--soft") }, hovermode: "closest",
    xaxis: { ...axis, title: { text: plotText(xTitle), standoff: 6, font: { size: 11 } } }, yaxis: { ...axis },
    hoverlabel: { bgcolor: resolve("--panel"), bordercolor: resolve("--line"), font: { color: resolve("--ink") } } };
}

// Plotly's symbols, and the corners of each in percent of its box: curves are told apart by more than their colour.
const SHAPES = { circle: "", square: "0 0,100 0,100 100,0 100", diamond: "50 0,100 50,50 100,0 50", "triangle-up": "50 0,100 100,0 100",
  cross: "35 0,65 0,65 35,100 35,100 65,65 65,65 100,35 100,35 65,0 65,0 35,35 35", "triangle-down": "0 0,100 0,50 100",
  x: "20 0,50 30,80 0,100 20,70 50,100 80,80 100,50 70,20 100,0 80,30 50,0 20", star: "50 0,62 38,100 38,69 60,81 100,50 76,19 100,31 60,0 38,38 38",
  hexagon: "25 0,75 0,100 50,75 100,25 100,0 50", pentagon: "50 0,100 38,81 100,19 100,0 38" };
function shaped(swatch, symbol) {
  swatch.dataset.symbol = symbol;
  if (SHAPES[symbol]) Object.assign(swatch.style, { borderRadius: 0, clipPath: `polygon(${SHAPES[symbol].replace(/\d+/g, "$&%")})` });
  return swatch;
}

// Where fewer than two powers of ten are within reach, what stands between them is labelled, too. Labels are whole numbers:
// a bare digit would leave its power to be guessed.
function logAxis(values) {
  const logs = values.filter((value) => value > 0).map(Math.log10), first = Math.floor(Math.min(...logs)), last = Math.ceil(Math.max(...logs));
  if (Math.floor(Math.max(...logs)) > Math.ceil(Math.min(...logs))) return { type: "log", dtick: 1, exponentformat: "power" };
  const powers = Array.from({ length: last - first + 1 }, (_, i) => first + i), least = Math.min(...logs), most = Math.max(...logs);
  for (const digits of [[1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]]) {
    const tickvals = powers.flatMap((power) => digits.map((digit) => digit * 10 ** power));
    if (tickvals.filter((value) => Math.log10(value) >= least && Math.log10(value) <= most).length > 2)
      return { type: "log", tickvals, ticktext: tickvals.map((value) => String(Number(value.toPrecision(1)))) };
  }
  return { type: "log" }; // over so short a range it is nearly even
}

// A chart in words, for who hears it.
function described(title, y, x, curves) {
  const told = curves.map(({ name, y: all }) => [name, all.filter((value) => value !== null)]).filter(([, values]) => values.length)
    .map(([name, values]) => `${name} from ${asFigure(Math.min(...values))} to ${asFigure(Math.max(...values))}`);
  return `${title}: line chart, ${y} against ${x}. ${told.join("; ")}`;
}

// A view box lets the print style scale the drawing to the paper.
function scalable(plot) {
  for (const svg of $$(".main-svg", plot)) {
    const width = svg.getAttribute("width"), height = svg.getAttribute("height");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    plot.style.setProperty("--ratio", width / height);
  }
}

function drawPlot(plot, traces, layout) {
  const first = !plot.on;
  Plotly.react(plot, traces, layout, CONFIG);
  // A chart that was hidden while the window changed has its old width.
  if (!first && plot.clientWidth && plot._fullLayout.width !== plot.clientWidth) Plotly.Plots.resize(plot);
  if (first) plot.on("plotly_afterplot", () => scalable(plot));
  scalable(plot);
}

// ---------------------------------------------------------------- attention

let views = 0;
// CircuitsVis in `box`. Its root is kept there, so that the next view can take this one down.
function showCircuits(box, component, properties) {
  box.circuits?.unmount();
  const host = element("div", undefined, { id: `circuits-${views++}` });
  box.replaceChildren(host);
  box.circuits = CircuitsVis.render(host.id, component, properties);
}

// A token as prose has it: spaces and line ends as themselves, what cannot be seen as a picture.
const plain = (token) => token === "\n" ? "↵ " : /^[^\u0000-\u001f\u007f]+$/.test(token) && token.search(UNSEEN) < 0 ? token : visible(token);
// By characters: half of a surrogate pair is no text.
function cut(text, most) {
  const all = [...text];
  return all.length > most ? `${all.slice(0, most - 1).join("")}…` : text;
}
const shortened = (token) => cut(visible(token), 14);

// ---------------------------------------------------------------- sortable tables

// Fills the table in `box`; `dress`, if given, is called with each row drawn and its number, `figure` writes a number that is not whole
// of the column of that name.
function sortableTable(box, { length, columns }, dress = () => {}, figure = (value) => String(Number(value.toPrecision(4)))) {
  const PER_PAGE = 25, shown = columns.filter((c) => c.shown);
  const table = $(".sortable", box), head = $("thead", table), body = $("tbody", table), chosen = new Map();
  let order = null, descending = false, at = 0, rows = [];

  const read = ({ name, values, numeric }, i) => values[i] === null ? "–" : numeric && !Number.isInteger(values[i]) ? figure(values[i], name) : String(values[i]);
  // A number is found as it is shown and as it is kept.
  const text = Array.from({ length }, (_, i) => columns.map((c) => `${c.values[i] ?? ""}${c.numeric && c.values[i] !== null ? ` ${read(c, i)}` : ""}`).join("\u0001").toLowerCase());
  function compare(a, b) {
    const x = order.values[a], y = order.values[b];
    if (x === null || y === null) return (x === null) - (y === null) || a - b; // missing ones last, both ways
    const sign = order.numeric ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return (descending ? -sign : sign) || a - b;
  }
  function refresh() {
    const wanted = $(".search", box).value.toLowerCase().split(/\s+/).filter(Boolean);
    rows = [...Array(length).keys()].filter((i) => wanted.every((word) => text[i].includes(word))
      && [...chosen].every(([column, value]) => String(column.values[i] ?? "") === value));
    if (order) rows.sort(compare);
    at = 0;
    turn();
  }
  function turn() {
    const last = Math.min(at + PER_PAGE, rows.length);
    body.replaceChildren(...rows.slice(at, last).map((i) => {
      const row = element("tr");
      for (const column of shown) row.append(element("td", read(column, i), column.numeric ? { class: "num" } : {}));
      dress(row, i);
      return row;
    }));
    $(".count", box).textContent = rows.length ? `rows ${at + 1} to ${last} of ${rows.length}` : "no row matches";
    $(".previous", box).disabled = at === 0;
    $(".next", box).disabled = last >= rows.length;
  }
  const titles = element("tr");
  for (const column of shown) {
    const cell = element("th", undefined, { scope: "col" }), button = element("button", column.title, { type: "button" });
    if (column.numeric) cell.className = "num";
    button.addEventListener("click", () => {
      descending = order === column ? !descending : false;
      order = column;
      for (const other of titles.children) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
      refresh();
    });
    cell.append(button);
    if (column.choices) {
      const select = element("select", undefined, { "aria-label": `only this ${column.title}`, name: column.name });
      const values = [...new Set(column.values.map((v) => String(v ?? "")))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
      select.append(element("option", "all", { value: "all" }), ...values.map((v, i) => element("option", v === "" ? "(none)" : v, { value: `=${i}` })));
      select.addEventListener("change", () => {
        select.value === "all" ? chosen.delete(column) : chosen.set(column, values[Number(select.value.slice(1))]);
        refresh();
      });
      cell.append(select);
    }
    titles.append(cell);
  }
  head.append(titles);
  $(".search", box).addEventListener("input", refresh);
  $(".clear", box).addEventListener("click", () => {
    $(".search", box).value = "";
    chosen.clear();
    for (const select of $$("select", head)) select.value = "all";
    refresh();
  });
  $(".previous", box).addEventListener("click", () => { at -= PER_PAGE; turn(); });
  $(".next", box).addEventListener("click", () => { at += PER_PAGE; turn(); });
  refresh();
  // The rows found, in their order, as lists of the values of these columns.
  return { turn, found: (kept = columns) => rows.map((i) => kept.map((c) => c.values[i])) };
}

function measurementsTable(data) {
  const table = sortableTable($("#measurements"), data);
  $("#table-csv").addEventListener("click", () => saveCsv("measurements", data.columns.map((c) => c.name), table.found()));
}

return { $, $$, element, drawn, placeOf, bytesOf, inflated, library, waiting, drawWaiting, whenSeen, plotText, visible, plain, shortened, cut, asFigure, wholePercent, saveCsv, save, saveBlob, menus, choice, errorBars, linesOf,
  hoverText, resolve, forgetColours, CIVIDIS, SHAPES, shaped, plotLayout, logAxis, described, drawPlot, showCircuits, sortableTable, measurementsTable };
})();
