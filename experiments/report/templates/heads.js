// Draws what Python chose: colours, selects, sorts, filters, saves. It computes no science.
common.start((page) => {
const { $, $$, element, saveCsv, save, choice, CIVIDIS, plotLayout, drawPlot, sortableTable, measurementsTable, setUpTheme, whenSeen, tips,
  drawn, setUpPictures, boxesPicture, drawnPicture, asFigure, walk } = common;
const { column, layers, rowOf, numberOf, words, probability, interval, PLAIN, colourOf, initials, swatch, LINES, drawLines, frequencyTicks, setUpPanel, showHead,
  recolourPanel } = headPanel(page);
const { conditions, metrics, labels } = page;
const ABLATED = conditions[1], OWN = "own";
const redraws = [];
let selected = null;

// ---------------------------------------------------------------- what a head is called, what it is

function factsOf(i) {
  const q = column.q_value[i], facts = [`${column.name[i]}: ${column.label[i] ?? "no label"}`];
  facts.push(`confidence ${asFigure(column.confidence[i])}, q ${probability(q)}`);
  if (column.runner_up[i]) facts.push(`next best: ${column.runner_up[i]}`);
  if (ABLATED) {
    facts.push(`ablated: ${column.ablated_label[i] ?? "no label"}`);
    if (column.dependence[i]) facts.push(`dependence: ${column.dependence[i]}`);
    if (column.retention[i] !== null) facts.push(`retention ${asFigure(column.retention[i])}${interval(column.retention_low[i], column.retention_high[i])}`);
  }
  return facts;
}

// ---------------------------------------------------------------- the selected head

function select(i, reveal = false) {
  selected = i;
  for (const cell of $$("[data-head]")) cell.toggleAttribute("data-selected", Number(cell.dataset.head) === i);
  for (const edge of $$("#circuit [data-ends]")) edge.toggleAttribute("data-selected", edge.dataset.ends.split(" ").includes(column.name[i]));
  showHead(i);
  if (!reveal) return;
  if (location.hash !== `#${column.name[i]}`) location.hash = column.name[i];
  $("#head").open = true;
  const box = $("#head").getBoundingClientRect();
  if (box.top < 0 || box.top > innerHeight * 0.6) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    $("#head").scrollIntoView({ behavior: calm ? "auto" : "smooth" });
  }
}

function followHash() {
  const i = numberOf.get(location.hash.slice(1));
  if (i !== undefined && i !== selected) select(i);
  return i !== undefined;
}

// ---------------------------------------------------------------- layer x head maps

function setUpMap(section) {
  const heads = [...new Set(column.head)].sort((a, b) => a - b);
  const { box: shading, select: shade } = choice("shade", "Colour by", [["", "label"], ...(column.own_label ? [[OWN, "your own rules"]] : []), ...metrics.map((m) => [m, words(m)])]);
  $(".controls", section).append(shading);
  const cells = conditions.map(() => new Map());

  const grids = conditions.map((condition, c) => {
    const box = element("figure", undefined, { class: "map" }), grid = element("div", undefined, { class: "grid", role: "grid", "aria-label": `Heads, ${condition}` });
    box.append(element("h3", c ? `Ablated: ${condition}` : "Positions intact"), grid);
    grid.style.setProperty("--heads", heads.length);
    grid.style.setProperty("--layers", layers.length);
    const top = element("div", undefined, { role: "row", class: "cells" });
    top.append(element("span", "", { role: "columnheader" }), ...heads.map((h) => element("span", `H${h}`, { role: "columnheader" })));
    grid.append(top);
    for (const layer of layers) {
      const row = element("div", undefined, { role: "row", class: "cells" });
      row.append(element("span", `L${layer}`, { role: "rowheader" }));
      for (const head of heads) {
        const i = numberOf.get(`L${layer}H${head}`), cell = element("button", "", { type: "button", role: "gridcell", tabindex: -1 });
        if (i === undefined) cell.disabled = true;
        else {
          cell.dataset.head = i;
          cells[c].set(i, cell);
        }
        row.append(cell);
      }
      grid.append(row);
    }
    const first = $("[data-head]", grid);
    if (first) first.tabIndex = 0;
    tips(grid, "[data-head]", (cell) => {
      const i = Number(cell.dataset.head), lines = factsOf(i);
      if (shade.value && shade.value !== OWN) lines.push(`${words(shade.value)} ${asFigure(valueOf(shade.value, i, c))}, chance ${asFigure(column[`${shade.value}_chance`][i])}`);
      return lines;
    });
    grid.addEventListener("click", (event) => {
      const cell = event.target.closest("[data-head]");
      if (cell) select(Number(cell.dataset.head), true);
    });
    grid.addEventListener("keydown", (event) => walk(event, grid, heads.length));
    return box;
  });
  $(".maps", section).replaceChildren(...grids);
  $(".maps", section).classList.toggle("wide", heads.length > 20);
  $(".maps", section).classList.toggle("dense", heads.length > 8);

  function draw() {
    const own = shade.value === OWN, metric = own ? "" : shade.value, legend = $(".legend", section);
    const values = metric ? conditions.flatMap((_, c) => column.name.map((_, i) => valueOf(metric, i, c))).filter((v) => v !== null) : [];
    const low = Math.min(0, ...values), high = Math.max(...values, low + 1e-9);
    cells.forEach((found, c) => found.forEach((cell, i) => {
      const label = labelOf(i, c, own), value = metric && valueOf(metric, i, c);
      const part = metric ? value === null ? 0 : (value - low) / (high - low) : 1;
      cell.style.setProperty("--own", metric ? "var(--accent)" : `var(${colourOf(label)})`);
      cell.style.setProperty("--part", `${Math.round(100 * part)}%`);
      cell.toggleAttribute("data-pale", metric ? part < 0.55 : label === null || label === PLAIN);
      cell.textContent = metric ? value === null ? "–" : twoDigits(value) : initials(label);
      cell.setAttribute("aria-label", `${column.name[i]}, ${metric ? `${words(metric)} ${asFigure(value)}` : label ?? "no label"}`);
    }));
    if (metric) {
      const key = element("span", undefined, { class: "key" });
      key.append(asFigure(low), element("i", undefined, { class: "scale" }), `${asFigure(high)} · ${words(metric)}`);
      return legend.replaceChildren(key);
    }
    legend.replaceChildren(...labels.map((label) => {
      const key = element("span", undefined, { class: "key" }), counts = conditions.map((_, c) => column.name.filter((_, i) => labelOf(i, c, own) === label).length);
      if (!counts.some(Boolean)) return "";
      key.append(swatch(label), element("span", initials(label), { class: "quiet-text" }), `${label} `, element("b", counts.join(" → ")));
      return key;
    }));
    if (ABLATED) legend.append(element("span", "heads, intact → ablated", { class: "quiet-text" }));
  }
  shade.addEventListener("change", draw);
  draw();
  $(".csv", section).addEventListener("click", () => saveCsv("labels", ["layer", "head", ...conditions.map((c) => `label, ${c}`)],
    column.name.map((_, i) => [column.layer[i], column.head[i], ...conditions.map((_, c) => labelOf(i, c))])));
  setUpPictures(section, () => "heads", () => boxesPicture(section, $$(".cells button", section), $$(".cells > *, h3, .legend .key", section)));
}

const labelOf = (i, c, own = false) => (own ? column[c ? "own_ablated_label" : "own_label"] : c ? column.ablated_label : column.label)[i];
// Adding zero makes a zero of what rounds to minus zero.
const twoDigits = (value) => (Number(value.toFixed(2)) + 0).toFixed(2).replace("-", "−").replace(/^(−?)0\./, "$1.");
const valueOf = (metric, i, c) => column[c ? `${metric}_ablated` : metric][i];

// ---------------------------------------------------------------- all frequencies

function setUpFrequencies(section) {
  const plot = $(".plot", section), { box, select: norm } = choice("norm", "Show", [["query_norm", "query norm"], ["key_norm", "key norm"]]);
  $(".controls", section).append(box);
  const radians = page.frequencies.radians, rotating = radians.filter((layer) => layer[0] !== null);
  const alike = rotating.every((layer) => layer.every((r, f) => r === rotating[0][f]));
  const starts = column.name.filter((_, i) => column.layer[i] !== column.layer[i - 1]), step = Math.ceil(starts.length / 32);
  function draw() {
    const z = column.name.map((_, i) => page.frequencies[norm.value][rowOf(i)][column.head[i]]);
    const layout = plotLayout(alike ? "radians per token, highest frequency first" : "rank of the frequency, highest first");
    if (alike && rotating.length) Object.assign(layout.xaxis, frequencyTicks(rotating[0], 14));
    Object.assign(layout.yaxis, { autorange: "reversed", tickvals: starts.filter((_, i) => i % step === 0), showgrid: false });
    layout.xaxis.showgrid = false;
    layout.height = Math.min(900, Math.max(220, 80 + 7 * z.length));
    plot.style.height = `${layout.height}px`; // which a window of another size, or paper, leaves
    const text = column.name.map((_, i) => radians[rowOf(i)].map((r) => asFigure(r)));
    drawPlot(plot, [{ type: "heatmap", z, y: column.name, text, colorscale: CIVIDIS, hoverongaps: false,
      hovertemplate: "%{y}, %{text} rad/token<br>norm %{z:.3~g}<extra></extra>", colorbar: { thickness: 10, outlinewidth: 0, tickfont: { size: 10 } } }], layout);
  }
  norm.addEventListener("change", draw);
  redraws.push(draw);
  draw();
  plot.on("plotly_click", ({ points }) => select(numberOf.get(points[0].y), true));
  setUpPictures(section, () => "frequencies");
  $(".csv", section).addEventListener("click", () => {
    const { query_norm: query, key_norm: key } = page.frequencies;
    const rows = column.name.flatMap((_, i) => { const l = rowOf(i), h = column.head[i]; return radians[l].map((r, f) => [column.layer[i], h, f, r, query[l][h][f], key[l][h][f]]); });
    saveCsv("frequencies", ["layer", "head", "rank", "radians_per_token", "query_norm", "key_norm"], rows);
  });
}

// ---------------------------------------------------------------- how labels settle

function setUpSettling(section) {
  const lines = page.settling, figure = $("figure", section);
  function draw() {
    const layout = plotLayout("sequences of text");
    Object.assign(layout.xaxis, { type: "log", tickvals: lines[0].n, ticktext: lines[0].n.map(String) });
    Object.assign(layout.yaxis, { range: [0, 1.03], tickformat: ".0%" });
    const named = (y, text) => y.map((share) => `${Math.round(100 * share)}% ${text}`);
    drawLines(figure, lines.flatMap(({ condition, n, share, chance }, c) => [
      { role: c ? "ablated" : "intact", name: condition, x: n, y: share, text: named(share, "of the heads") },
      { role: c ? "chanceAblated" : "chance", name: lines.length > 1 ? `chance, ${condition}` : "chance", x: n, y: chance, text: named(chance, "by chance") }]), layout);
  }
  redraws.push(draw);
  draw();
  setUpPictures(figure, () => "settling");
  $(".csv", figure).addEventListener("click", () => saveCsv("settling", ["positions", "sequences", "share", "chance"],
    lines.flatMap(({ condition, n, share, chance }) => n.map((count, i) => [condition, count, share[i], chance[i]]))));
}

// ---------------------------------------------------------------- circuit

// More edges than this hide one another.
const MOST_EDGES = 60;

function setUpCircuit(section) {
  const STEP = 34, EDGE = 50, heads = [...new Set(column.head)].sort((a, b) => a - b);
  const gap = Math.max(36, Math.min(340, 1040 / Math.max(1, layers.length - 1)));
  const width = 2 * EDGE + gap * (layers.length - 1), height = 2 * EDGE + STEP * (heads.length - 1);
  const place = (i) => [EDGE + gap * layers.indexOf(column.layer[i]), EDGE + STEP * heads.indexOf(column.head[i])];
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Heads by layer, and the edges between them" });
  Object.assign(svg.style, { maxWidth: `${width}px`, minWidth: `${Math.min(width, 42 * layers.length)}px` });
  const strongest = [...page.edges].sort((a, b) => b.score - a.score), edges = strongest.slice(0, MOST_EDGES).reverse();
  const top = Math.max(...strongest.map((e) => e.score ?? 0), 1e-9), joined = new Set(strongest.flatMap((edge) => [edge.from, edge.to]));
  if (edges.length < strongest.length) $(".drawn", section).textContent = ` The ${edges.length} strongest of ${strongest.length} edges are drawn; the table has all.`;
  for (const [e, edge] of edges.entries()) {
    const [x1, y1] = place(numberOf.get(edge.from)), [x2, y2] = place(numberOf.get(edge.to)), part = Math.max(0, edge.score ?? 0) / top;
    // An edge over several layers bows, so that it passes the heads between its ends.
    const bow = Math.min(40, 14 * (Math.round((x2 - x1) / gap) - 1));
    const path = `M${x1} ${y1}C${x1 + gap / 2} ${y1 - bow} ${x2 - gap / 2} ${y2 - bow} ${x2} ${y2}`, weak = edge.chance !== null && edge.score <= edge.chance;
    svg.append(drawn("path", { d: path, class: weak ? "edge weak" : "edge", "data-ends": `${edge.from} ${edge.to}`, "stroke-width": 0.8 + 3.2 * part, "stroke-opacity": 0.2 + 0.6 * part }),
      drawn("path", { d: path, class: "edge-target", "data-edge": e }));
  }
  for (const i of column.name.keys()) {
    const [x, y] = place(i), inside = joined.has(column.name[i]);
    const node = drawn("g", { class: inside ? "node joined" : "node", "data-head": i, role: "button", "aria-label": `${column.name[i]}, ${column.label[i] ?? "no label"}` });
    if (inside) node.setAttribute("tabindex", 0);
    const dot = drawn("circle", { cx: x, cy: y, r: inside ? 9 : 4 });
    dot.style.fill = `var(${colourOf(column.label[i])})`;
    node.append(dot);
    if (inside) {
      const name = drawn("text", { x, y: y - 12 });
      name.textContent = column.name[i];
      node.append(name);
    }
    svg.append(node);
  }
  for (const layer of layers) {
    const name = drawn("text", { x: EDGE + gap * layers.indexOf(layer), y: height - 8, class: "layer" });
    name.textContent = `L${layer}`;
    svg.append(name);
  }
  $(".graph", section).append(svg);
  tips(svg, "[data-head], [data-edge]", (item) => {
    if (item.dataset.head !== undefined) return factsOf(Number(item.dataset.head));
    const edge = edges[item.dataset.edge];
    const others = edge.chance === null ? "these layers have no other pair" : `90% of other pairs have at most ${asFigure(edge.chance)}`;
    return [`${edge.from} → ${edge.to}`, `K-composition ${asFigure(edge.score)}; ${others}`];
  });
  const open = (event) => {
    const node = event.target.closest("[data-head]");
    if (node) select(Number(node.dataset.head), true);
  };
  svg.addEventListener("click", open);
  svg.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(event); } });
  const shown = labels.filter((label) => [...joined].some((name) => column.label[numberOf.get(name)] === label));
  $(".legend", section).append(...shown.map((label) => {
    const key = element("span", undefined, { class: "key" });
    key.append(swatch(label), label);
    return key;
  }));
  $(".edges tbody", section).append(...strongest.map((edge) => {
    const row = element("tr");
    row.append(headLink(edge.from), headLink(edge.to), element("td", asFigure(edge.score), { class: "num" }), element("td", asFigure(edge.chance), { class: "num" }));
    return row;
  }));
  setUpPictures(section, () => "composition", () => drawnPicture(svg));
  $(".csv", section).addEventListener("click", () => saveCsv("composition", ["from", "to", "k_composition", "chance"], strongest.map((e) => [e.from, e.to, e.score, e.chance])));
}

// A table cell that leads to a head.
function headLink(name) {
  const cell = element("td"), link = element("a", name, { href: `#${name}` });
  leadToHead(link);
  cell.append(link);
  return cell;
}

// Inside a notebook's frame the address alone would not lead there.
function leadToHead(link) {
  const name = link.hash.slice(1);
  link.addEventListener("click", (event) => { event.preventDefault(); event.stopPropagation(); select(numberOf.get(name), true); });
}

// ---------------------------------------------------------------- what leads heads to their token

function setUpFinders(section) {
  $$(".to-head", section).forEach(leadToHead);
  $(".csv", section).addEventListener("click", () => saveCsv("finders", page.finders.columns, page.finders.rows));
}

// ---------------------------------------------------------------- table of heads

function setUpHeadsTable(section) {
  const { columns } = page.heads, shown = columns.filter((c) => c.shown), at = (name) => shown.findIndex((c) => c.name === name);
  const table = sortableTable(section, page.heads, (row, i) => {
    row.dataset.head = i;
    row.toggleAttribute("data-selected", i === selected);
    row.children[at("name")].replaceWith(headLink(column.name[i]));
    for (const [name, values] of [["label", column.label], ["ablated_label", column.ablated_label]])
      if (at(name) >= 0 && values[i] !== null) row.children[at(name)].prepend(swatch(values[i]));
    row.addEventListener("click", () => select(i, true));
  }, (value, name) => name === "q_value" ? probability(value) : asFigure(value));
  const names = (kept) => kept.map((c) => c.name);
  $("#heads-csv").addEventListener("click", () => saveCsv("heads", names(columns), table.found()));
  $("#heads-json").addEventListener("click", () => {
    const rows = table.found().map((values) => Object.fromEntries(values.map((value, c) => [columns[c].name, value])));
    save("heads.json", "application/json", JSON.stringify(rows, null, 1) + "\n");
  });
  $("#heads-markdown").addEventListener("click", () => {
    const cell = (v) => v === null ? "" : String(v).replace(/[\\`*_[\]#|<>&]/g, "\\$&").replace(/\s+/g, " ");
    const line = (values) => `| ${values.join(" | ")} |`;
    const rows = [line(names(shown).map(cell)), line(shown.map((c) => c.numeric ? "---:" : "---")), ...table.found(shown).map((values) => line(values.map(cell)))];
    save("heads.md", "text/markdown", rows.join("\n") + "\n");
  });
}

// ---------------------------------------------------------------- the whole page

for (const item of $$("[data-role]")) item.style.setProperty("--own", `var(${LINES[item.dataset.role][0]})`);
for (const item of $$("#rules .swatch")) item.style.setProperty("--own", `var(${colourOf(item.dataset.label)})`);
measurementsTable(page.table);
if (column.name.length) {
  setUpMap($("#map"));
  setUpPanel((i) => select(i, true));
  setUpHeadsTable($("#heads"));
  if (page.frequencies) whenSeen($("#frequencies figure"), "plotly", () => setUpFrequencies($("#frequencies")));
  if (page.settling.length) whenSeen($("#settling figure"), "plotly", () => setUpSettling($("#settling")));
  if (page.edges.length) setUpCircuit($("#circuit"));
  if (page.finders.rows.length) setUpFinders($("#finders"));
  // The surest of the labelled heads first, unless the address names one.
  const sureness = (i) => column.label[i] === null || column.label[i] === PLAIN ? -1 : column.confidence[i] ?? 0;
  const surest = [...column.name.keys()].reduce((best, i) => sureness(i) > sureness(best) ? i : best, 0);
  if (!followHash()) select(surest);
  addEventListener("hashchange", () => { if (!followHash() && !location.hash) select(surest); });
  redraws.push(recolourPanel);
}
setUpTheme(() => redraws.forEach((draw) => draw()));
});
