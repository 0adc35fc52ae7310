// Draws what Python chose: claims' curves and heat maps. It computes no science.
common.start((page) => {
const { $, $$, element, asFigure, plotText, saveCsv, errorBars, hoverText, resolve, SHAPES, shaped, plotLayout, logAxis, described, drawPlot, measurementsTable, setUpTheme, whenSeen, setUpPictures, answerPicture } = common;
const redraws = [];

const own = (nth) => `--label-${nth % 10}`, symbol = (nth) => Object.keys(SHAPES)[nth % 10];
const swatch = (nth) => {
  const dot = element("span", "", { class: "swatch" });
  dot.style.setProperty("--own", `var(${own(nth)})`);
  return shaped(dot, symbol(nth));
};
const LINES = { predicted: "fit", reference: "control", chance: "chance" };
// Two levels of chance have two dashes.
const isFurther = (panel, series) => panel.series.filter((s) => s.kind === "chance").indexOf(series) > 0;

// Where curves meet at named places they stand side by side: how far from the name, by their number.
function apart(figure, panel) {
  const measured = panel.series.filter((s) => s.kind === "measured"), at = measured.flatMap((s) => s.x);
  const step = figure.ticks.length && new Set(at).size < at.length ? 0.5 / measured.length : 0;
  return (nth) => step * (nth - (measured.length - 1) / 2);
}

function traces(figure, panel, series, nth, shift) {
  const text = plotText(series.name), named = (x) => figure.ticks.length ? plotText(figure.ticks[x]) : x;
  const points = { x: series.x, y: series.y, customdata: series.x.map(named), name: text, type: "scatter", mode: "lines", showlegend: false,
    hovertemplate: `%{customdata}: %{y:.4~g}<extra>${hoverText(series.name)}</extra>` };
  if (series.kind === "predicted") return { ...points, line: { color: resolve("--ink", 0.75), width: 1.3 } };
  if (series.kind === "reference") return { ...points, line: { color: resolve("--soft"), width: 1.6, dash: "dot" } };
  if (series.kind === "chance") return { ...points, line: { color: resolve("--chance"), width: 1.4, dash: isFurther(panel, series) ? "dashdot" : "dash" } };
  const colour = resolve(own(nth)), measured = { ...points, x: series.x.map((x) => x + shift), mode: figure.ticks.length ? "markers" : "lines+markers", line: { color: resolve(own(nth), 0.5), width: 1.2 },
    marker: { color: colour, size: 6, symbol: symbol(nth) } };
  if (series.low) measured.error_y = errorBars(series, { thickness: 1.2, width: 2, color: colour });
  return measured;
}

function heat(figure, panel) {
  const z = panel.series.map((row) => row.y), names = panel.series.map((row) => plotText(row.name));
  // One scale for all panels: a colour is one number in the whole figure.
  const every = figure.panels.flatMap((shown) => shown.series.flatMap((row) => row.y));
  const spread = Math.max(...every.filter((v) => v !== null).map((v) => Math.abs(v - figure.heat_about)), 1e-9);
  return { type: "heatmap", x: figure.ticks.map(plotText), y: names, z, zmin: figure.heat_about - spread, zmax: figure.heat_about + spread,
    colorscale: [[0, resolve("--random-init")], [0.5, resolve("--panel")], [1, resolve("--trained")]], xgap: 1, ygap: 1,
    texttemplate: figure.ticks.length > 10 ? "" : "%{z:.2f}", hovertemplate: "%{y}<br>%{x}: %{z:.3f}<extra></extra>", colorbar: { thickness: 10, outlinewidth: 0 } };
}

// Of names that are numbers no more than have room; the last one is always among them.
function spaced(names, width) {
  const every = names.every((name) => Number.isFinite(Number(name))) ? Math.ceil(names.length * (10 + 7 * Math.max(...names.map((name) => name.length))) / width) : 1;
  return names.map((_, i) => i).filter((i) => (names.length - 1 - i) % every === 0);
}

function layoutOf(figure, panel, width) {
  const layout = plotLayout(figure.x);
  if (figure.heat_about !== null) {
    // Names such as 8 and 16 are no numbers here.
    Object.assign(layout.xaxis, { type: "category" });
    Object.assign(layout.yaxis, { type: "category", autorange: "reversed" });
    layout.xaxis.title.text = "";
    layout.xaxis.showgrid = layout.yaxis.showgrid = false;
    return layout;
  }
  if (figure.shaded) layout.shapes = [{ type: "rect", yref: "paper", y0: 0, y1: 1, x0: figure.shaded[0], x1: figure.shaded[1], layer: "below",
    line: { width: 0 }, fillcolor: resolve("--soft", 0.12) }];
  if (figure.log.includes("x")) Object.assign(layout.xaxis, logAxis(panel.series.flatMap((s) => s.x)));
  if (figure.log.includes("y")) {
    const values = panel.series.flatMap((s) => s.y).filter((v) => v > 0), decades = Math.log10(Math.max(...values) / Math.min(...values));
    Object.assign(layout.yaxis, logAxis(values));
    // What does not change should look flat, not as noise.
    if (decades < 0.5) { const middle = Math.log10(Math.max(...values) * Math.min(...values)) / 2; layout.yaxis.range = [middle - 0.5, middle + 0.5]; }
  }
  if (figure.ticks.length) {
    const kept = spaced(figure.ticks, width - layout.margin.l);
    Object.assign(layout.xaxis, { tickvals: kept, ticktext: kept.map((i) => plotText(figure.ticks[i])), range: [-0.5, figure.ticks.length - 0.5], ticklabeloverflow: "allow" });
    layout.margin.r = 14;
  }
  return layout;
}

function describe(figure, panel) {
  if (figure.heat_about === null) return described(panel.title, figure.y, figure.x, panel.series.filter((s) => s.kind === "measured"));
  const z = panel.series.flatMap((row) => row.y).filter((value) => value !== null);
  return `${panel.title}: heat map of ${figure.y} from ${asFigure(Math.min(...z))} to ${asFigure(Math.max(...z))}`;
}

function legend(panel) {
  const box = element("div", undefined, { class: "legend" });
  let nth = 0;
  for (const series of panel.series) {
    const key = element("span", undefined, { class: "key" });
    key.append(series.kind === "measured" ? swatch(nth++) : element("i", "", { class: `${LINES[series.kind]}${isFurther(panel, series) ? " further" : ""}` }), series.name);
    box.append(key);
  }
  return box;
}

function setUpFigure(box) {
  const figure = page.figures[Number(box.dataset.figure)], host = $(".panels", box), isHeat = figure.heat_about !== null;
  const drawn = [], lines = ({ series }) => series.map(({ kind, name }) => `${kind} ${name}`).join("\n"), alike = new Set(figure.panels.map(lines)).size === 1;
  if (alike && !isHeat) host.before(legend(figure.panels[0]));
  for (const panel of figure.panels) {
    const div = element("div", undefined, { class: "panel" }), plot = element("div", undefined, { class: "plot", role: "img", "aria-label": describe(figure, panel) });
    div.append(element("h4", panel.title), element("p", isHeat ? "" : figure.y, { class: "unit" }), plot);
    if (isHeat) plot.style.height = `${60 + 21 * panel.series.length}px`;
    else if (!alike) div.append(legend(panel));
    host.append(div);
    drawn.push(() => {
      let nth = 0;
      const shift = apart(figure, panel);
      const lines = isHeat ? [heat(figure, panel)] : panel.series.map((series) => series.kind === "measured" ? traces(figure, panel, series, nth, shift(nth++)) : traces(figure, panel, series));
      drawPlot(plot, lines, layoutOf(figure, panel, plot.clientWidth));
    });
  }
  whenSeen(box, "plotly", () => {
    redraws.push(...drawn);
    drawn.forEach((draw) => draw());
  });
  setUpPictures(box, () => figure.id);
  $(".csv", box).addEventListener("click", () => {
    const rows = figure.panels.flatMap((panel) => panel.series.flatMap((series) => series.x.map((x, i) =>
      [panel.title, series.name, figure.ticks.length ? figure.ticks[x] : x, series.y[i], series.low?.[i], series.high?.[i]])));
    saveCsv(figure.id, ["panel", "curve", figure.x, figure.y, "ci_low", "ci_high"], rows);
  });
}

for (const box of $$("[data-figure]")) setUpFigure(box);
if (page.first) {
  const figure = $("#answer");
  setUpPictures(figure, () => "claims", () => answerPicture(figure));
  $(".csv", figure).addEventListener("click", () => saveCsv("claims", page.first.header, page.first.rows));
}
const redraw = () => redraws.forEach((draw) => draw());
measurementsTable(page.table);
setUpTheme(redraw);
});
