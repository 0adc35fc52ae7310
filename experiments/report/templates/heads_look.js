// What colours labels have, small pictures of weights, and lines of numbers by distance, frequency or layer.
const labelLook = (labels) => {
const { element } = common;

// One colour per label; "none" and what no rule names stay pale.
const PLAIN = "none", COLOURS = 10;
const coloured = labels.filter((label) => label !== PLAIN);
const colourOf = (label) => label === null || label === PLAIN ? "--label-none" : `--label-${coloured.indexOf(label) % COLOURS}`;
const initials = (label) => label === null || label === PLAIN ? "·" : label.split(/[-_ ]+/).map((word) => word.slice(0, 1).toUpperCase()).join("");
function swatch(label) {
  const made = element("span", undefined, { class: "swatch" });
  made.style.setProperty("--own", `var(${colourOf(label)})`);
  return made;
}

return { PLAIN, colourOf, initials, swatch };
};

const headPictures = (() => {
const { element, resolve } = common;

// The first queries have few keys and so weights near one: they must not set the scale.
function topOf(patterns) {
  const seen = patterns.flatMap((weights) => weights.flatMap((row, q) => row.slice(0, q + 1).map(Math.abs))).sort((a, b) => a - b);
  return Math.max(0.05, seen[Math.floor(0.99 * (seen.length - 1))]);
}

function channels(name) {
  return resolve(name).match(/[\d.]+/g).slice(0, 3).map(Number);
}

// One pixel for each weight; a root makes small weights seen. Differences below zero have a colour of their own.
function paint(weights, low, high, below = high) {
  const n = weights.length, canvas = element("canvas", undefined, { width: n, height: n }), context = canvas.getContext("2d"), image = context.createImageData(n, n), top = topOf([weights]);
  for (let q = 0; q < n; q++) for (let k = 0; k < n; k++) {
    if (k > q && !weights[q][k]) continue; // hidden by the causal mask
    const weight = weights[q][k], part = Math.sqrt(Math.min(1, Math.abs(weight) / top)), at = 4 * (q * n + k), to = weight < 0 ? below : high;
    for (const c of [0, 1, 2]) image.data[at + c] = low[c] + part * (to[c] - low[c]);
    image.data[at + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

return { topOf, channels, paint };
})();

const headLines = (() => {
const { $, element, plotText, hoverText, resolve, drawPlot, linesOf } = common;

const LINES = { intact: ["--trained", "solid"], ablated: ["--random-init", "solid"], chance: ["--chance", "dash"], chanceAblated: ["--random-init", "dash"], query: ["--trained", "solid"], key: ["--bidirectional", "solid"] };

function drawLines(figure, lines, layout) {
  const legend = $(".legend", figure), plot = $(".plot", figure);
  legend.replaceChildren(...lines.map(({ role, name }) => {
    const key = element("span", undefined, { class: "key" }), mark = element("i", undefined, { class: "line" });
    mark.style.borderTop = `2px ${LINES[role][1] === "dash" ? "dashed" : "solid"} var(${LINES[role][0]})`;
    key.append(mark, name);
    return key;
  }));
  const traces = lines.map(({ role, name, x, y, text }) => ({ x, y, text, type: "scatter", mode: linesOf(x), name: plotText(name), showlegend: false,
    line: { color: resolve(LINES[role][0]), width: role.startsWith("chance") ? 1.4 : 2, dash: LINES[role][1] },
    hovertemplate: `%{text}: %{y:.3~g}<extra>${hoverText(name)}</extra>` }));
  drawPlot(plot, traces, layout);
}

// Ticks that say radians per token under ranks: frequencies may be zero, which no logarithm shows.
function frequencyTicks(radians, most) {
  const step = Math.max(1, Math.ceil(radians.length / most)), kept = radians.map((_, f) => f).filter((f) => f % step === 0);
  return { tickvals: kept, ticktext: kept.map((f) => radians[f] === null ? "" : radians[f] === 0 ? "0" : radians[f] < 0.001 ? radians[f].toExponential(0) : String(Number(radians[f].toPrecision(2)))) };
}

return { LINES, drawLines, frequencyTicks };
})();
