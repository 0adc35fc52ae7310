// Draws what Python chose: switches views, redraws, sorts, filters, saves. It computes no science.
common.start((page) => {
const { $, $$, element, bytesOf, plotText, visible, shortened, saveCsv, menus, errorBars, linesOf, hoverText, resolve, CIVIDIS, shaped, plotLayout, logAxis, described, drawPlot, showCircuits,
  measurementsTable, setUpTheme, whenSeen, setUpPictures, answerPicture, boxesPicture, mapsPicture } = common;
const { channels, paint: painted } = headPictures;
const redraws = [];
let setting = page.setting ? `${page.setting[0]}|${page.setting[1] ? "begin" : "nobegin"}` : "";

function unpack(text, scale) {
  const bytes = bytesOf(text);
  const integers = new DataView(bytes.buffer);
  return Array.from({ length: bytes.length / 2 }, (_, i) => {
    const value = integers.getInt16(2 * i, true);
    return value === -32768 ? null : value / scale;
  });
}

// One colour and one symbol per variant, everywhere.
const KNOWN = ["trained", "pretrained", "random-init", "bidirectional"];
const SYMBOLS = { trained: "circle", pretrained: "circle", "random-init": "square", bidirectional: "diamond" };
const symbolOf = (variant) => SYMBOLS[variant] ?? "triangle-up";
function colourName(variant) {
  if (KNOWN.includes(variant)) return `--${variant}`;
  const others = page.variants.filter((name) => !KNOWN.includes(name));
  return `--other-${Math.max(0, others.indexOf(variant)) % 2}`;
}
function paint(root) {
  for (const item of $$("[data-variant]", root)) item.style.setProperty("--own", `var(${colourName(item.dataset.variant)})`);
}

// ---------------------------------------------------------------- charts

const ROLE = { value: "measured", depth: "layer" };

// One layer's colour: the variant's, from faint (early) to full (late).
const depthColour = (series) => resolve(colourName(series.variant), 0.25 + 0.75 * series.shade);

function lineTraces(series, chart) {
  const points = { x: series.x, y: series.y, name: plotText(series.name), mode: linesOf(series.x), type: "scatter", showlegend: false };
  const hover = `%{y:.4~g}<extra>${hoverText(series.name)}</extra>`;
  if (series.kind === "chance") return [{ ...points, line: { color: resolve("--chance"), width: 1.4, dash: "dash" }, hovertemplate: hover }];
  if (series.kind === "fit") return [{ ...points, line: { color: resolve("--ink", 0.75), width: 1 }, hoverinfo: "skip" }];
  if (series.kind === "depth") return [{ ...points, line: { color: depthColour(series), width: 1.6 },
    text: series.text.map((token, i) => plotText(`${visible(token)} at ${i}`)),
    hovertemplate: `%{text}: %{y:.1f}<extra>${plotText(series.name)}</extra>` }];
  const name = colourName(series.variant);
  if (series.kind === "control") return [{ ...points, line: { color: resolve(name, 0.6), width: 1.5, dash: "dot" }, hovertemplate: hover }];
  const measured = { ...points, line: { color: resolve(name), width: 2 }, hovertemplate: hover };
  if (series.text) Object.assign(measured, { text: series.text.map(plotText), hovertemplate: `%{text}: ${hover}` });
  if (chart.interval === "bars") {
    measured.mode = "lines+markers";
    measured.marker = { color: resolve(name), size: chart.text === "word" ? series.text.map((word) => word === "used" ? 11 : 6) : 7, symbol: symbolOf(series.variant) };
    if (series.low) measured.error_y = errorBars(series, { thickness: 1.3, width: 3, color: resolve(name) });
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

function baseLayout(chart, panel, log) {
  const layout = plotLayout(chart.x);
  for (const [axis, of] of [[layout.xaxis, "x"], [layout.yaxis, "y"]])
    Object.assign(axis, log ? logAxis(panel.series.flatMap((series) => series[of])) : { type: "linear" });
  if (chart.ticks) {
    const depths = Object.keys(chart.ticks).map(Number).sort((a, b) => a - b);
    const step = Math.ceil(depths.length / 10);
    const kept = chart.named_x ? spaced(depths) : depths.filter((depth) => depth < 0 || depth % step === 0);
    Object.assign(layout.xaxis, { tickvals: kept, ticktext: kept.map((depth) => plotText(chart.ticks[depth])), showgrid: false,
      range: [depths[0] - 0.3, depths[depths.length - 1] + 0.3] });
  }
  if (chart.marked !== undefined) layout.shapes = [marker(chart.marked)];
  return layout;
}

const marker = (x) => ({ type: "line", layer: "below", yref: "paper", y0: 0, y1: 1, x0: x, x1: x, line: { color: resolve("--ink", 0.4), width: 3 } });

// The last one, the first one, and of those between what leaves room for words.
function spaced(ticks) {
  const room = (ticks[ticks.length - 1] - ticks[0]) / 9;
  return ticks.reduceRight((kept, tick, i) => i && kept.length && kept[0] - tick < room ? kept : [tick, ...kept], []);
}

// The same vertical range for all panels in the same unit; nothing that is drawn falls outside.
function commonRange(panels) {
  const values = panels.filter((panel) => !panel.own_axis).flatMap((panel) => panel.series)
    .flatMap((s) => s.kind === "control" ? s.y : [...s.y, ...(s.low ?? []), ...(s.high ?? [])]).filter((v) => v !== null);
  if (!values.length) return undefined;
  const low = Math.min(...values), high = Math.max(...values), room = 0.06 * (high - low || 1);
  return [low >= 0 ? 0 : low - room, high + room];
}

function describe(chart, panel) {
  if (panel.matrix) return `${panel.title}: heat map of cosines from ${panel.matrix.low} to ${panel.matrix.high}`;
  return described(panel.title, panel.y, chart.x, panel.series.filter((s) => s.kind === "value"));
}

function setUpChart(figure) {
  const chart = page.charts[figure.dataset.chart];
  const host = $(".panels", figure), legend = $(".legend", figure), hidden = new Set();
  let log = false;
  const prefix = () => chart.switched ? [setting] : [];
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
  // The site where the code is read best in this setting: the chart opens there, and says so.
  const best = () => chart.best?.[setting];
  let opened;
  function openAtBest() {
    if (opened === setting || !best()) return;
    opened = setting;
    menu.choose(best());
  }
  function say() {
    const said = $(".here", figure), there = chart.ticks ? undefined : best();
    said.hidden = !there;
    if (!there) return;
    const at = there.every((choice, i) => choice === menu.chosen[i]);
    said.replaceChildren(`In the ${page.variants[0]} model this signal is read best ${at ? "here." : "at another site. "}`);
    if (at) return;
    const back = element("button", "Show it", { type: "button", class: "quiet" });
    back.addEventListener("click", () => { menu.choose(best()); draw(); });
    said.append(back);
  }

  function drawLegend(view) {
    const series = view.panels.flatMap((panel) => panel.series);
    const names = page.variants.filter((name) => view.panels.some((p) => p.variant === name) || series.some((s) => s.variant === name));
    legend.replaceChildren();
    for (const name of names) {
      const button = element("button", undefined, { type: "button", "aria-pressed": !hidden.has(name), title: "show or hide" });
      const swatch = element("span", undefined, { class: "swatch", "data-variant": name });
      button.append(chart.kind === "lines" && chart.interval === "bars" ? shaped(swatch, symbolOf(name)) : swatch, name);
      button.addEventListener("click", () => { hidden.has(name) ? hidden.delete(name) : hidden.add(name); draw(); });
      legend.append(button);
    }
    const kinds = new Set(series.map((s) => s.kind));
    const words = { control: chart.control, chance: chart.chance, fit: chart.fit };
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
    openAtBest();
    const view = chart.views[key()];
    menu.refresh();
    say();
    for (const used of $$(".controls, .csv, .picture", figure)) used.hidden = !view;
    if (!view) {
      $$(".plot", host).forEach((plot) => Plotly.purge(plot));
      legend.replaceChildren();
      host.replaceChildren(element("p", "Not measured in this setting.", { class: "empty" }));
      return;
    }
    drawLegend(view);
    const panels = view.panels.filter((panel) => !hidden.has(panel.variant));
    host.style.setProperty("--columns", panels.length === 4 ? 4 : Math.min(3, Math.max(panels.length, 2)));
    if ($$(".plot", host).length !== panels.length) {
      $$(".plot", host).forEach((plot) => Plotly.purge(plot));
      host.replaceChildren(...panels.map(() => {
        const panel = element("div", undefined, { class: "panel" });
        panel.append(element("h4"), element("p", undefined, { class: "unit" }), element("div", undefined, { class: "plot", role: "img" }), element("p", undefined, { class: "elsewhere" }));
        return panel;
      }));
    }
    const range = chart.share_y ? commonRange(panels) : undefined;
    const spans = panels.filter((panel) => panel.matrix);
    const low = Math.min(...spans.map((p) => p.matrix.low)), high = Math.max(...spans.map((p) => p.matrix.high));
    panels.forEach((panel, i) => {
      const box = host.children[i], plot = $(".plot", box), layout = baseLayout(chart, panel, log);
      if (panel.marked !== undefined) layout.shapes = [marker(panel.marked)];
      $("h4", box).textContent = panel.title;
      $(".unit", box).textContent = panel.y;
      $(".elsewhere", box).textContent = panel.elsewhere ? `Read best in the ${page.variants[0]} model at ${panel.elsewhere}.` : "";
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
      drawPlot(plot, traces, layout);
    });
  }

  const name = () => [chart.id, ...key().split("|")].filter(Boolean).join("_");
  setUpPictures(figure, name);
  $(".csv", figure).addEventListener("click", () => {
    const view = chart.views[key()];
    if (!view) return;
    if (chart.kind === "heat") {
      const rows = view.panels.flatMap((panel) => {
        const z = cosineCells(panel.matrix), p = panel.matrix.positions;
        return z.flatMap((row, i) => row.map((value, j) => [panel.title, p[i], p[j], value])).filter((row) => row[1] !== row[2]);
      });
      return saveCsv(name(), ["variant", "position_1", "position_2", "cosine"], rows);
    }
    const texts = view.panels.some((panel) => panel.series.some((series) => series.text));
    const rows = view.panels.flatMap((panel) => panel.series.flatMap((s) => s.x.map((x, i) =>
      [panel.title, s.variant, ROLE[s.kind] ?? chart[s.kind], s.name, ...(texts ? [s.text?.[i]] : []), chart.ticks?.[x] ?? x, s.y[i], s.low?.[i], s.high?.[i], panel.y])));
    saveCsv(name(), ["panel", "variant", "role", "series", ...(texts ? [chart.text] : []), chart.x.replace(/\W+/g, "_"), "value", "ci_low", "ci_high", "unit"], rows);
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
    saveCsv("one-sequence", ["variant", "layer", "position", "token", "predicted"], rows);
  });
  setUpPictures(figure, () => ["one-sequence", ...menu.chosen].join("_"), () => boxesPicture(figure, $$("li", figure), $$("h3, li :is(b, small)", figure)));
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
  function weights() {
    const view = patterns[menu.chosen[0]][menu.chosen[1]], flat = unpack(view.weights, page.scales.pattern), n = view.tokens;
    const heads = Array.from({ length: view.heads }, (_, h) => Array.from({ length: n }, (_, q) => flat.slice((h * n + q) * n, (h * n + q + 1) * n)));
    return { view, heads };
  }
  function draw() {
    const { view, heads } = weights();
    showCircuits($(".circuits", figure), CircuitsVis.AttentionHeads, { attention: heads, tokens: tokens.slice(0, view.tokens).map(shortened),
      attentionHeadNames: heads.map((_, h) => `H${h}`), maskUpperTri: view.causal, minValue: 0, maxValue: view.top });
    $(".top", figure).textContent = ` Full colour from a weight of ${view.top}.`;
  }
  $(".csv", figure).addEventListener("click", () => {
    const rows = weights().heads.flatMap((head, h) => head.flatMap((row, q) => row.map((value, k) => [h, q, k, value])));
    saveCsv(name(), ["head", "query", "key", "weight"], rows);
  });
  const name = () => ["attention", ...menu.chosen].join("_");
  setUpPictures(figure, name, () => {
    const { heads } = weights(), low = channels("--paper"), high = channels(colourName(menu.chosen[0]));
    const maps = heads.map((head, h) => ({ name: `H${h}`, canvas: painted(head, low, high) }));
    return mapsPicture(`Layer ${menu.chosen[1]}, ${menu.chosen[0]}`, maps, tokens.slice(0, heads[0].length).map(shortened), heads.length > 4 ? 4 : 2);
  });
  draw();
}

// ---------------------------------------------------------------- the whole page

const redraw = () => redraws.forEach((draw) => draw());

function showSetting() {
  const [tokens, begin] = setting.split("|");
  for (const part of $$("[data-setting]")) part.hidden = part.dataset.setting !== setting;
  for (const note of $$(".absent")) note.hidden = [...note.parentElement.children].some((part) => part !== note && !part.hidden);
  for (const when of $$(".when")) when.textContent = `, on ${tokens} tokens ${begin === "begin" ? "with" : "without"} a begin token`;
}

function setUpAnswer(figure) {
  $(".csv", figure).addEventListener("click", () => saveCsv("answer", page.first.header, page.first.rows));
  setUpPictures(figure, () => "answer", () => answerPicture(figure));
}

function setUpStill(figure) {
  const { name, header, rows } = page.still[Number(figure.dataset.still)];
  $(".csv", figure).addEventListener("click", () => saveCsv(name, header, rows));
  setUpPictures(figure, () => name, () => boxesPicture(figure, $$("td.shade", figure), $$("h4, caption, th, td", figure)));
}

// The slider moves a mark through all panels and shows the table of its step.
function setUpHistory(section) {
  const { at, steps, table } = page.history, slider = $("#history-step"), figures = $$("[data-chart]", section);
  function go() {
    const nth = Number(slider.value);
    for (const said of $$(".at-step", section)) said.textContent = steps[nth];
    slider.setAttribute("aria-valuetext", `step ${steps[nth]}`);
    $$("tbody", section).forEach((body, i) => { body.hidden = i !== nth; });
    for (const figure of figures) {
      page.charts[figure.dataset.chart].marked = at[nth];
      for (const plot of $$(".plot", figure)) if (plot.data) Plotly.relayout(plot, { shapes: [marker(at[nth])] });
    }
  }
  slider.addEventListener("input", go);
  // Paper shows the last step.
  let before;
  addEventListener("beforeprint", () => { before = slider.value; slider.value = slider.max; go(); });
  addEventListener("afterprint", () => { slider.value = before; go(); });
  $("#history-table .csv").addEventListener("click", () => saveCsv("history", table.header, table.rows));
  go();
}

function setUpSettings(form) {
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
    setting = `${chosen("tokens")}|${chosen("begin")}`;
    showSetting();
    redraw();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  offer();
}

paint(document);
showSetting();
for (const form of $$(".settings")) setUpSettings(form);
if ($("#history")) setUpHistory($("#history"));
for (const figure of $$("[data-chart]")) whenSeen(figure, "plotly", () => setUpChart(figure));
for (const figure of $$("[data-still]")) setUpStill(figure);
if ($("#answer")) setUpAnswer($("#answer"));
if ($("#strip")) setUpStrip($("#strip"));
if ($("#attention")) whenSeen($("#attention"), "circuitsvis", () => setUpAttention($("#attention")));
measurementsTable(page.table);
setUpTheme(redraw);
});
