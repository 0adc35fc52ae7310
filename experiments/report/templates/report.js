"use strict";
// Draws what Python chose: switches views, redraws, sorts, filters, saves. It computes no science.
(() => {
const page = JSON.parse(document.getElementById("report-data").textContent);
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const redraws = [];
let condition = page.condition ? `${page.condition[0]}|${page.condition[1] ? "begin" : "nobegin"}` : "";

// ---------------------------------------------------------------- small helpers

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Plotly reads labels as a kind of HTML.
const plotText = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const CONTROL_PICTURES = { "\n": "↵", "\t": "⇥", " ": "␣" };
const visible = (token) => token === "" ? "∅" : token.replace(/[\u0000-\u0020\u007f]/g,
  (c) => CONTROL_PICTURES[c] ?? (c === "\u007f" ? "␡" : String.fromCharCode(0x2400 + c.charCodeAt(0))));

function unpack(text, scale) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const integers = new DataView(bytes.buffer);
  return Array.from({ length: bytes.length / 2 }, (_, i) => {
    const value = integers.getInt16(2 * i, true);
    return value === -32768 ? null : value / scale;
  });
}

function save(name, header, rows) {
  const cell = (v) => v === null || v === undefined ? "" : /[",\r\n]/.test(v) ? `"${String(v).replace(/"/g, '""')}"` : String(v);
  const text = [header, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
  const link = element("a", "", { download: `${name.replace(/[^\w.-]+/g, "-")}.csv` });
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// One colour and one symbol per variant, everywhere.
const KNOWN = ["trained", "pretrained", "random-init", "bidirectional"];
const SYMBOLS = { trained: "circle", pretrained: "circle", "random-init": "square", bidirectional: "diamond" };
function colourName(variant) {
  if (KNOWN.includes(variant)) return `--${variant}`;
  const others = page.variants.filter((name) => !KNOWN.includes(name));
  return `--other-${Math.max(0, others.indexOf(variant)) % 2}`;
}
const probe = document.body.appendChild(element("span", "", { class: "hidden", "aria-hidden": "true" }));
function resolve(name, alpha = 1) {
  probe.style.color = `color-mix(in srgb, var(${name}) ${100 * alpha}%, transparent)`;
  const parts = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
  const channels = getComputedStyle(probe).color.startsWith("color(") ? parts.slice(0, 3).map((c) => Math.round(255 * c)) : parts.slice(0, 3);
  return `rgba(${channels.join(",")},${parts[3] ?? 1})`;
}
function paint(root) {
  for (const item of $$("[data-variant]", root)) item.style.setProperty("--own", `var(${colourName(item.dataset.variant)})`);
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
  refresh();
  return { chosen, refresh };
}

// ---------------------------------------------------------------- charts

const CONFIG = { responsive: true, displayModeBar: false };
const CIVIDIS = ["#00204d", "#00306f", "#2a406c", "#48526b", "#5e626e", "#727374", "#878479", "#9e9677", "#b6a971", "#d0be67", "#ead357", "#fee838"]
  .map((colour, i, all) => [i / (all.length - 1), colour]);
const ROLE = { value: "measured", control: "shuffled positions", chance: "chance", fit: "fit", depth: "layer" };

// One layer's colour: the variant's, from faint (early) to full (late).
const depthColour = (series) => resolve(colourName(series.variant), 0.25 + 0.75 * series.shade);

function lineTraces(series, chart) {
  const points = { x: series.x, y: series.y, name: plotText(series.name), mode: "lines", type: "scatter", showlegend: false };
  const hover = `%{y:.4~g}<extra>${plotText(series.name).replace(/%/g, "%\u200b")}</extra>`;
  if (series.kind === "chance") return [{ ...points, line: { color: resolve("--chance"), width: 1.4, dash: "dash" }, hovertemplate: hover }];
  if (series.kind === "fit") return [{ ...points, line: { color: resolve("--ink", 0.75), width: 1 }, hoverinfo: "skip" }];
  if (series.kind === "depth") return [{ ...points, line: { color: depthColour(series), width: 1.6 },
    text: series.text.map((token, i) => plotText(`${visible(token)} at ${i}`)),
    hovertemplate: `%{text}: %{y:.1f}<extra>${plotText(series.name)}</extra>` }];
  const name = colourName(series.variant);
  if (series.kind === "control") return [{ ...points, line: { color: resolve(name, 0.6), width: 1.5, dash: "dot" }, hovertemplate: hover }];
  const measured = { ...points, line: { color: resolve(name), width: 2 }, hovertemplate: hover };
  if (chart.interval === "bars") {
    measured.mode = "lines+markers";
    measured.marker = { color: resolve(name), size: 7, symbol: SYMBOLS[series.variant] ?? "triangle-up" };
    if (series.low) measured.error_y = { type: "data", symmetric: false, thickness: 1.3, width: 3, color: resolve(name),
      array: series.high.map((h, i) => h === null ? 0 : h - series.y[i]), arrayminus: series.low.map((l, i) => l === null ? 0 : series.y[i] - l) };
    return [measured];
  }
  if (!series.low) return [measured];
  const band = { x: [...series.x, ...[...series.x].reverse()], y: [...series.high, ...[...series.low].reverse()], type: "scatter", mode: "lines",
    fill: "toself", fillcolor: resolve(name, 0.22), line: { width: 0 }, hoverinfo: "skip", showlegend: false };
  return [band, measured];
}

function cosineCells(matrix) {
  const n = matrix.positions.length, cells = unpack(matrix.cells, page.scales.cosine);
  const z = Array.from({ length: n }, () => new Array(n).fill(null));
  let at = 0;
  for (let i = 1; i < n; i++) for (let j = 0; j < i; j++) z[i][j] = z[j][i] = cells[at++];
  return z;
}

function baseLayout(chart, log) {
  const axis = { gridcolor: resolve("--grid"), linecolor: resolve("--line"), zeroline: false, automargin: true, ticks: "outside",
    ticklen: 4, tickcolor: resolve("--line"), type: log ? "log" : "linear" };
  const x = { ...axis, title: { text: plotText(chart.x), standoff: 6, font: { size: 11 } } };
  if (log) x.dtick = axis.dtick = 1;
  if (chart.ticks) {
    const depths = Object.keys(chart.ticks).map(Number).sort((a, b) => a - b);
    const step = Math.ceil(depths.length / 10);
    const kept = depths.filter((depth) => depth < 0 || depth % step === 0);
    Object.assign(x, { tickvals: kept, ticktext: kept.map((depth) => plotText(chart.ticks[depth])), showgrid: false, range: [depths[0] - 0.3, depths[depths.length - 1] + 0.3] });
  }
  return { margin: { l: 42, r: 8, t: 8, b: 38 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 11, color: resolve("--soft") }, xaxis: x, yaxis: { ...axis }, hovermode: "closest",
    hoverlabel: { bgcolor: resolve("--panel"), bordercolor: resolve("--line"), font: { color: resolve("--ink") } } };
}

// The same vertical range for all panels in the same unit; nothing that is drawn falls outside.
function commonRange(panels) {
  const values = panels.filter((panel) => !panel.own_axis).flatMap((panel) => panel.series)
    .flatMap((s) => s.kind === "control" ? s.y : [...s.y, ...(s.low ?? []), ...(s.high ?? [])]).filter((v) => v !== null);
  if (!values.length) return undefined;
  const low = Math.min(...values), high = Math.max(...values), room = 0.06 * (high - low || 1);
  return [low >= 0 ? 0 : low - room, high + room];
}

// A view box lets the print style scale the drawing to the paper.
function scalable(plot) {
  for (const svg of $$(".main-svg", plot)) {
    const width = svg.getAttribute("width"), height = svg.getAttribute("height");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    plot.style.setProperty("--ratio", width / height);
  }
}

function describe(chart, panel) {
  if (panel.matrix) return `${panel.title}: heat map of cosines from ${panel.matrix.low} to ${panel.matrix.high}`;
  const parts = panel.series.filter((s) => s.kind === "value").map((s) => {
    const y = s.y.filter((v) => v !== null);
    return `${s.name} from ${Math.min(...y)} to ${Math.max(...y)}`;
  });
  return `${panel.title}: line chart, ${panel.y} against ${chart.x}. ${parts.join("; ")}`;
}

function setUpChart(figure) {
  const chart = page.charts[figure.dataset.chart];
  const host = $(".panels", figure), legend = $(".legend", figure), hidden = new Set();
  let log = false;
  const prefix = () => chart.conditional ? [condition] : [];
  const exists = (choices) => {
    const start = [...prefix(), ...choices].join("|");
    return Object.keys(chart.views).some((key) => key === start || key.startsWith(start + "|"));
  };
  const menu = menus($(".controls", figure), chart.controls, exists, draw);
  if (chart.log_toggle) {
    const toggle = element("button", "log–log axes", { type: "button", class: "quiet log", "aria-pressed": "false" });
    toggle.addEventListener("click", () => {
      log = !log;
      toggle.setAttribute("aria-pressed", log);
      toggle.textContent = log ? "linear axes" : "log–log axes";
      draw();
    });
    $(".csv", figure).before(toggle);
  }
  const key = () => [...prefix(), ...menu.chosen].join("|");

  function drawLegend(view) {
    const series = view.panels.flatMap((panel) => panel.series);
    const names = page.variants.filter((name) => view.panels.some((p) => p.variant === name) || series.some((s) => s.variant === name));
    legend.replaceChildren();
    for (const name of names) {
      const button = element("button", undefined, { type: "button", "aria-pressed": !hidden.has(name), title: "show or hide" });
      button.append(element("span", undefined, { class: "swatch", "data-variant": name }), name);
      button.addEventListener("click", () => { hidden.has(name) ? hidden.delete(name) : hidden.add(name); draw(); });
      legend.append(button);
    }
    const kinds = new Set(series.map((s) => s.kind));
    const words = { control: "shuffled positions", chance: "chance", fit: chart.log_toggle ? "a + b/m" : "perfect" };
    for (const kind of ["chance", "control", "fit"]) if (kinds.has(kind)) {
      const item = element("span", undefined, { class: "key" });
      item.append(element("i", undefined, { class: kind }), words[kind]);
      legend.append(item);
    }
    if (chart.interval === "band" && series.some((s) => s.low)) {
      const item = element("span", undefined, { class: "key" });
      item.append(element("i", undefined, { class: "interval" }), "95% interval");
      legend.append(item);
    }
    paint(legend);
  }

  function draw() {
    const view = chart.views[key()];
    menu.refresh();
    if (!view) {
      $$(".plot", host).forEach((plot) => Plotly.purge(plot));
      legend.replaceChildren();
      host.replaceChildren(element("p", "Not measured under this condition.", { class: "empty" }));
      return;
    }
    drawLegend(view);
    const panels = view.panels.filter((panel) => !hidden.has(panel.variant));
    host.style.setProperty("--columns", panels.length === 4 ? 4 : Math.min(3, Math.max(panels.length, 2)));
    if ($$(".plot", host).length !== panels.length) {
      $$(".plot", host).forEach((plot) => Plotly.purge(plot));
      host.replaceChildren(...panels.map(() => {
        const panel = element("div", undefined, { class: "panel" });
        panel.append(element("h4"), element("p", undefined, { class: "unit" }), element("div", undefined, { class: "plot", role: "img" }));
        return panel;
      }));
    }
    const range = chart.share_y ? commonRange(panels) : undefined;
    const spans = panels.filter((panel) => panel.matrix);
    const low = Math.min(...spans.map((p) => p.matrix.low)), high = Math.max(...spans.map((p) => p.matrix.high));
    panels.forEach((panel, i) => {
      const box = host.children[i], plot = $(".plot", box), layout = baseLayout(chart, log);
      $("h4", box).textContent = panel.title;
      $(".unit", box).textContent = panel.y;
      plot.setAttribute("aria-label", describe(chart, panel));
      let traces;
      if (panel.matrix) {
        traces = [{ type: "heatmap", x: panel.matrix.positions, y: panel.matrix.positions, z: cosineCells(panel.matrix), zmin: low, zmax: high,
          colorscale: CIVIDIS, hovertemplate: "positions %{y} and %{x}<br>cosine %{z:.3f}<extra></extra>",
          colorbar: { thickness: 8, len: 1, outlinewidth: 0, xpad: 4, tickfont: { size: 10 }, nticks: 5 } }];
        Object.assign(layout.yaxis, { autorange: "reversed", showgrid: false, scaleanchor: "x", constrain: "domain" });
        Object.assign(layout.xaxis, { showgrid: false, constrain: "domain" });
        layout.margin.r = 4;
      } else {
        traces = panel.series.filter((series) => !hidden.has(series.variant)).flatMap((series) => lineTraces(series, chart));
        if (range && !panel.own_axis && !log) layout.yaxis.range = range;
        else if (!log && chart.from_zero) layout.yaxis.rangemode = "tozero";
      }
      const first = !plot.on;
      Plotly.react(plot, traces, layout, CONFIG);
      if (first) plot.on("plotly_afterplot", () => scalable(plot));
      scalable(plot);
    });
  }

  $(".csv", figure).addEventListener("click", () => {
    const view = chart.views[key()];
    if (!view) return;
    const name = [chart.id, ...key().split("|")].filter(Boolean).join("_");
    if (chart.kind === "heat") {
      const rows = view.panels.flatMap((panel) => {
        const z = cosineCells(panel.matrix), p = panel.matrix.positions;
        return z.flatMap((row, i) => row.map((value, j) => [panel.title, p[i], p[j], value])).filter((row) => row[1] !== row[2]);
      });
      return save(name, ["variant", "position_1", "position_2", "cosine"], rows);
    }
    const rows = view.panels.flatMap((panel) => panel.series.flatMap((s) => s.x.map((x, i) =>
      [panel.title, s.variant, ROLE[s.kind], s.name, s.text?.[i], x, s.y[i], s.low?.[i], s.high?.[i], panel.y])));
    save(name, ["panel", "variant", "role", "series", "token", chart.x.replace(/\W+/g, "_"), "value", "ci_low", "ci_high", "unit"], rows);
  });
  redraws.push(draw);
  draw();
}

// ---------------------------------------------------------------- one sequence

function setUpStrip(figure) {
  const { tokens, predictions } = page.example;
  const exists = ([variant, layer]) => variant in predictions && (layer === undefined || layer in predictions[variant]);
  const menu = menus($(".controls", figure), exampleControls(predictions), exists, draw);
  function draw() {
    const predicted = predictions[menu.chosen[0]]?.[menu.chosen[1]] ?? [];
    const list = $(".strip", figure);
    list.style.setProperty("--own", `var(${colourName(menu.chosen[0])})`);
    list.replaceChildren(...tokens.map((token, i) => {
      const guess = predicted[i] ?? null, item = element("li");
      item.title = `${token}\ntrue position ${i}` + (guess === null ? ", not probed" : `, predicted ${guess}`);
      item.style.setProperty("--near", guess === null ? 0 : Math.max(0, 1 - Math.abs(guess - i) / (tokens.length / 4)));
      item.append(element("b", visible(token)), element("small", guess === null ? "–" : Math.round(guess)));
      return item;
    }));
  }
  $(".csv", figure).addEventListener("click", () => {
    const rows = Object.entries(predictions).flatMap(([variant, layers]) => Object.entries(layers).flatMap(([layer, predicted]) =>
      tokens.map((token, i) => [variant, layer, i, token, predicted[i]])));
    save("one-sequence", ["variant", "layer", "position", "token", "predicted"], rows);
  });
  draw();
}

// Menus for {variant: {layer: ...}}; the last layer is shown first.
function exampleControls(found) {
  const variants = Object.keys(found), layers = [...new Set(variants.flatMap((variant) => Object.keys(found[variant])))];
  return [{ name: "variant", label: "Model", options: variants.map((v) => [v, v]), value: variants[0] },
    { name: "layer", label: "Layer", options: layers.map((l) => [l, l]), value: layers[layers.length - 1] }];
}

function setUpAttention(figure) {
  const { patterns, tokens } = page.example;
  const exists = ([variant, layer]) => variant in patterns && (layer === undefined || layer in patterns[variant]);
  const menu = menus($(".controls", figure), exampleControls(patterns), exists, draw);
  let drawn = 0;
  function weights() {
    const view = patterns[menu.chosen[0]][menu.chosen[1]], flat = unpack(view.weights, page.scales.pattern), n = view.tokens;
    const heads = Array.from({ length: view.heads }, (_, h) => Array.from({ length: n }, (_, q) => flat.slice((h * n + q) * n, (h * n + q + 1) * n)));
    return { view, heads };
  }
  function draw() {
    const { view, heads } = weights(), host = element("div", undefined, { id: `circuits-${drawn++}` });
    $(".circuits", figure).replaceChildren(host);
    CircuitsVis.render(host.id, CircuitsVis.AttentionHeads, { attention: heads, tokens: tokens.slice(0, view.tokens).map(visible).map((t) => t.length > 14 ? t.slice(0, 13) + "…" : t),
      attentionHeadNames: heads.map((_, h) => `H${h}`), maskUpperTri: view.causal, minValue: 0, maxValue: view.top });
    $(".top", figure).textContent = ` Full colour from a weight of ${view.top}.`;
  }
  $(".csv", figure).addEventListener("click", () => {
    const rows = weights().heads.flatMap((head, h) => head.flatMap((row, q) => row.map((value, k) => [h, q, k, value])));
    save(["attention", ...menu.chosen].join("_"), ["head", "query", "key", "weight"], rows);
  });
  draw();
}

// ---------------------------------------------------------------- all measurements

function setUpTable() {
  const PER_PAGE = 25, { length, columns } = page.table, shown = columns.filter((c) => c.shown);
  const table = $("#table"), head = $("thead", table), body = $("tbody", table), chosen = new Map();
  const text = Array.from({ length }, (_, i) => columns.map((c) => c.values[i] ?? "").join("\u0001").toLowerCase());
  let order = null, descending = false, at = 0, rows = [];

  const read = ({ values, numeric }, i) => values[i] === null ? "–" : numeric ? String(Number(values[i].toPrecision(4))) : values[i];
  function compare(a, b) {
    const x = order.values[a], y = order.values[b];
    if (x === null || y === null) return (x === null) - (y === null) || a - b; // missing ones last, both ways
    const sign = order.numeric ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return (descending ? -sign : sign) || a - b;
  }
  function refresh() {
    const wanted = $("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
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
      return row;
    }));
    $("#count").textContent = rows.length ? `rows ${at + 1} to ${last} of ${rows.length}` : "no row matches";
    $("#previous").disabled = at === 0;
    $("#next").disabled = last >= rows.length;
  }
  const titles = element("tr");
  for (const column of shown) {
    const cell = element("th", undefined, { scope: "col" }), button = element("button", column.name, { type: "button" });
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
      const select = element("select", undefined, { "aria-label": `only this ${column.name}` });
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
  $("#search").addEventListener("input", refresh);
  $("#clear").addEventListener("click", () => {
    $("#search").value = "";
    chosen.clear();
    for (const select of $$("select", head)) select.value = "all";
    refresh();
  });
  $("#previous").addEventListener("click", () => { at -= PER_PAGE; turn(); });
  $("#next").addEventListener("click", () => { at += PER_PAGE; turn(); });
  $("#table-csv").addEventListener("click", () => save("measurements", columns.map((c) => c.name), rows.map((i) => columns.map((c) => c.values[i]))));
  refresh();
}

// ---------------------------------------------------------------- the whole page

const redraw = () => redraws.forEach((draw) => draw());

function showCondition() {
  const [tokens, begin] = condition.split("|");
  for (const body of $$("#verdicts tbody")) body.hidden = body.dataset.condition !== condition;
  for (const when of $$(".when")) when.textContent = `, on ${tokens} tokens ${begin === "begin" ? "with" : "without"} a begin token`;
}

function setUpConditions(form) {
  const measured = new Set(Object.values(page.charts).flatMap((chart) => Object.keys(chart.views)).map((key) => key.split("|").slice(0, 2).join("|")));
  const chosen = (name) => $(`input[name="${name}"]:checked`, form).value;
  function offer() {
    const tokens = chosen("tokens"), begins = $$('input[name="begin"]', form);
    for (const input of begins) input.disabled = !measured.has(`${tokens}|${input.value}`);
    const free = begins.find((input) => !input.disabled);
    if (free && $('input[name="begin"]:checked', form).disabled) free.checked = true;
  }
  form.addEventListener("change", () => {
    offer();
    condition = `${chosen("tokens")}|${chosen("begin")}`;
    showCondition();
    redraw();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  offer();
}

function setUpTheme() {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  $("#theme").addEventListener("click", () => {
    const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    redraw();
  });
  dark.addEventListener("change", redraw);
  // Paper is white: draw for it, then go back.
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; redraw(); });
  addEventListener("afterprint", () => { before ? root.dataset.theme = before : delete root.dataset.theme; redraw(); });
}

document.documentElement.classList.add("ready");
paint(document);
showCondition();
for (const form of $$(".conditions")) setUpConditions(form);
for (const figure of $$("[data-chart]")) setUpChart(figure);
if ($("#strip")) setUpStrip($("#strip"));
if ($("#attention")) setUpAttention($("#attention"));
setUpTable();
setUpTheme();
})();
