// Small pictures of all heads by layer, with borders in the colours of their labels.
const exploreHeads = ({ model, state, sides, look, onPick }) => {
const { $, $$, element, tips, walk, framed, textAt, resolve, save, asFigure } = common;
const { swatch, colourOf } = look, { paint, channels } = headPictures;
const figure = $("#map"), grid = $(".layers", figure);
const FEW = 32, HEIGHT = 520;
let read = null, pictures = {};

const finished = () => model.finished && !read.after;
// Before and after are compared by one method: the live labels.
const labelsOf = (side) => side === "after" ? read.after.labels : finished() ? model.finished.labels : read.before.labels;

function factsOf(layer, head) {
  const lines = [`${nameOf(layer, head)}: ${labelsOf("before")[layer][head]}`];
  if (read.after) lines.push(`after: ${read.after.labels[layer][head]}`, `attention changed by ${asFigure(read.difference.patterns[layer][head])} of 1`);
  for (const [metric, scores] of Object.entries(read.before.scores)) {
    const before = scores[layer][head], after = read.after?.scores[metric]?.[layer]?.[head];
    if (before !== null) lines.push(`${metric.replaceAll("_", " ")} ${asFigure(before)}${read.after ? ` → ${asFigure(after)}` : ""}`);
  }
  return lines;
}

// ---------------------------------------------------------------- the grid

function setUp() {
  grid.style.setProperty("--heads", model.heads);
  // As many layers below one another as one sees at once.
  const rows = model.attending.length, size = model.heads * rows <= FEW ? 74 : 46, columns = Math.ceil(rows * (size + 8) / HEIGHT);
  grid.style.setProperty("--most", `${size}px`);
  $("#heads").style.setProperty("--map", `${columns * ((size + 3) * model.heads + 40) + 20}px`);
  grid.append(...model.attending.map((layer, nth) => {
    const row = element("div", undefined, { role: "row" });
    row.append(element("span", `L${layer}`, { role: "rowheader" }), ...Array.from({ length: model.heads }, (_, head) =>
      element("button", undefined, { type: "button", role: "gridcell", tabindex: nth || head ? -1 : 0, "data-layer": layer, "data-head": head, "aria-label": nameOf(layer, head) })));
    return row;
  }));
  tips(grid, "[data-head]", ({ dataset }) => read ? factsOf(Number(dataset.layer), Number(dataset.head)) : [nameOf(dataset.layer, dataset.head)]);
  grid.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-head]");
    if (cell) onPick(Number(cell.dataset.layer), Number(cell.dataset.head));
  });
  grid.addEventListener("keydown", (event) => walk(event, grid, model.heads));
}

function pictureOf(layer, head) {
  const of = (name) => square(pictures[name][layer], head), side = sides.shown(), low = channels("--panel");
  if (side === "difference") return paint(lessen(of("after"), of("before")), low, channels("--trained"), channels("--random-init"));
  return paint(of(side === "after" ? "after" : "before"), low, channels("--trained"));
}

function show(answer = read) {
  if (!answer) return;
  if (answer !== read) pictures = Object.fromEntries(["before", "after"].filter((name) => answer[name]).map((name) => [name, answer[name].thumbnails.map(unpacked)]));
  read = answer;
  const side = sides.shown(), labels = labelsOf(side === "before" ? "before" : read.after ? "after" : "before"), chosen = state.get();
  for (const cell of $$("[data-head]", grid)) {
    const layer = Number(cell.dataset.layer), head = Number(cell.dataset.head);
    cell.replaceChildren(pictureOf(layer, head));
    cell.style.setProperty("--own", `var(${colourOf(labels[layer][head])})`);
    cell.setAttribute("aria-label", `${nameOf(layer, head)}, ${labels[layer][head]}`);
    cell.dataset.label = labels[layer][head];
  }
  mark(chosen.layer, chosen.head);
  drawLegend();
}

// The head that is looked at, from which the arrow keys go on.
function mark(layer, head) {
  const cells = $$("[data-head]", grid), chosen = cells.find(({ dataset }) => Number(dataset.layer) === layer && Number(dataset.head) === head);
  for (const cell of cells) {
    cell.toggleAttribute("data-selected", cell === chosen);
    cell.setAttribute("aria-selected", cell === chosen);
    if (chosen) cell.tabIndex = cell === chosen ? 0 : -1;
  }
}

function drawLegend() {
  const before = labelsOf("before").flat(), after = read.after?.labels.flat();
  const count = (labels, label) => labels.filter((other) => other === label).length;
  $(".legend", figure).replaceChildren(...model.labels.flatMap((label) => {
    const counts = [count(before, label), ...(after ? [count(after, label)] : [])], key = element("span", undefined, { class: "key", "data-label": label });
    key.append(swatch(label), `${label} `, element("b", counts.join(" → ")));
    return counts.some(Boolean) ? [key] : [];
  }));
  $("#label-source").textContent = finished() ? `Labels of the finished run ${model.finished.folder}.` : "Live labels, from this prompt and repeated random tokens; nothing is tested.";
}

// The head that opens first: that of the highest previous-token score, or else the first.
function first() {
  const scores = read.before.scores.previous_token ?? [], flat = scores.flatMap((row, layer) => row.map((score, head) => [score ?? -1, layer, head]));
  const [, layer, head] = flat.reduce((best, one) => one[0] > best[0] ? one : best, [-1, model.attending[0], 0]);
  return { layer, head };
}

// ---------------------------------------------------------------- as a file

function savePicture() {
  const CELL = 50, LEFT = 34, TOP = 36, cells = $$("[data-head]", grid), width = LEFT + CELL * model.heads + 10;
  const parts = cells.map((cell) => {
    const x = LEFT + CELL * Number(cell.dataset.head), y = TOP + CELL * model.attending.indexOf(Number(cell.dataset.layer)), ink = getComputedStyle(cell).borderTopColor;
    return `<rect x="${x}" y="${y}" width="${CELL - 4}" height="${CELL - 4}" fill="${ink}"/><image x="${x + 3}" y="${y + 3}" width="${CELL - 10}" height="${CELL - 10}" image-rendering="pixelated" href="${$("canvas", cell).toDataURL()}"/>`;
  });
  const rows = model.attending.map((layer, nth) => textAt(6, TOP + CELL * nth + 27, 12, resolve("--soft"), `L${layer}`));
  const keys = $$(".legend .key", figure).map((key, n) => `<rect x="${width + 10}" y="${TOP + 20 * n}" width="10" height="10" fill="${getComputedStyle($(".swatch", key)).backgroundColor}"/>` + textAt(width + 26, TOP + 9 + 20 * n, 12, resolve("--soft"), key.textContent));
  save("heads.svg", "image/svg+xml", framed(width + 230, Math.max(TOP + CELL * model.attending.length, TOP + 20 * keys.length) + 10, textAt(6, 20, 14, resolve("--ink"), `All heads of ${model.name}`) + parts.join("") + rows.join("") + keys.join("")));
}

return { setUp, show, mark, first, savePicture };
};
