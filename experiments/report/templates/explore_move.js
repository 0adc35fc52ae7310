// Positions that get the code of others, and what follows: heads, probes, predictions.
const exploreMove = ({ model, state, reading, onPick }) => {
const { $, element, visible, asFigure, whenSeen, plotLayout, drawPlot, plotText, resolve, choice, saveCsv, setUpPictures } = common;
const { drawLines } = headLines;
const section = $("#moved"), MOST_NAMED = 5, FIRST_SITE = "resid_post";
let answer = null, drawable = false, menu = null;

const token = (t) => `“${visible(reading.tokens()[t] ?? "")}” (${t})`;
const moves = () => state.get().move?.moves ?? {};

function set(next) {
  if (!Object.keys(next).length) return state.set({ move: null });
  if (!$("#code-layer").reportValidity()) return;
  state.set({ move: { code: $("#code").value, layer: Number($("#code-layer").value), site: $("#site").value, moves: next } });
}

// `onOpen` is told when somebody is about to move something.
function setUp(onOpen) {
  for (const [id, names] of [["#code", model.codes], ["#site", model.sites]]) $(id).append(...names.map((name) => element("option", name, { value: name })));
  if (model.sites.includes(FIRST_SITE)) $("#site").value = FIRST_SITE;
  $("#code-layer").max = model.layers - 1;
  // Rotary models have to have attended before their stream holds a code.
  $("#code-layer").value = Math.floor(model.layers / 4);
  for (const id of ["#code", "#site", "#code-layer"]) $(id).addEventListener("change", () => { if (Object.keys(moves()).length) set(moves()); });
  $("#add-move").addEventListener("click", () => {
    const from = $("#from"), to = $("#to");
    if (from.reportValidity() && to.reportValidity() && from.value !== "" && to.value !== "") set({ ...moves(), [Number(from.value)]: Number(to.value) });
  });
  for (const id of ["#from", "#to"]) $(id).addEventListener("keydown", (event) => { if (event.key === "Enter") $("#add-move").click(); });
  $("#no-move").addEventListener("click", () => set({}));
  $("#move").addEventListener("toggle", () => {
    drags();
    if ($("#move").open && reading.tokens().length) onOpen();
  });
}

function setUpResults() {
  const { box, select } = choice("moved-token", "Token", []);
  menu = select;
  $("#probed .controls").append(box);
  menu.addEventListener("change", drawProbes);
  whenSeen($("#followed"), "plotly", () => { drawable = true; draw(); });
  for (const id of ["followed", "probed"]) setUpPictures($(`#${id}`), () => id);
  $("#followed .csv").addEventListener("click", () => saveCsv("followed", ["layer", "head", "distance", "control"], each().map(({ layer, head, moved, control }) => [layer, head, moved, control])));
  $("#probed .csv").addEventListener("click", () => saveCsv("probed", ["layer", "position", "to", "before", "after", "control", "error"],
    answer.probes.flatMap(({ layer, error, moved }) => moved.map((one) => [layer, one.position, one.to, one.before, one.after, one.control, error]))));
}

const drags = () => $("#tokens").classList.toggle("drags", Boolean($("#move")?.open));

// ---------------------------------------------------------------- what is moved

function showMoves() {
  const { move } = state.get(), last = Math.max(0, reading.tokens().length - 1);
  if (move) for (const [id, value] of [["#code", move.code], ["#site", move.site], ["#code-layer", move.layer]]) $(id).value = value;
  for (const id of ["#from", "#to"]) $(id).max = last;
  const focused = document.activeElement?.dataset.moved;
  $("#moves").replaceChildren(...Object.entries(moves()).map(([t, to]) => {
    const item = element("li"), field = element("input", undefined, { type: "number", min: 0, max: last, step: 1, "data-moved": t, "aria-label": `Position whose code token ${t} gets` });
    const back = element("button", "×", { type: "button", "aria-label": `Put token ${t} back` });
    field.value = to;
    field.addEventListener("change", () => { if (field.value !== "" && field.reportValidity()) set({ ...moves(), [t]: Number(field.value) }); });
    back.addEventListener("click", () => set(Object.fromEntries(Object.entries(moves()).filter(([other]) => other !== t))));
    item.append(`${token(t)} gets the code of `, field, " ", back);
    return item;
  }));
  if (focused !== undefined) $(`[data-moved="${focused}"]`, $("#moves"))?.focus();
  $("#no-move").disabled = !move;
  reading.drawMoves();
}

function pick(t) {
  if ($("#from")) $("#from").value = t;
}

// ---------------------------------------------------------------- what follows

function each() {
  return answer.patterns.flatMap((row, layer) => row.map((moved, head) => ({ layer, head, moved, control: answer.control_patterns[layer][head] })));
}

function show(found = answer) {
  answer = found;
  section.hidden = !answer;
  if (!answer) return;
  const { distance, control_distance: control, control_low: low, control_high: high, draws } = answer;
  const follows = distance > high ? "The move does more than each of these draws." : "The move does no more than these draws, which does not show that the prediction follows.";
  $(".said", section).textContent = `The next-token prediction changes by ${asFigure(distance)}, where 1 is another prediction altogether. The size-matched control changes it by ${asFigure(control)} (${asFigure(low)} to ${asFigure(high)} in ${draws} draws). ${follows}`;
  $("ul.notes", section).replaceChildren(...answer.notes.map((note) => element("li", note)));
  const first = menu.value;
  menu.replaceChildren(...(answer.probes[0]?.moved ?? []).map(({ position, to }, i) => element("option", `${token(position)} as ${to}`, { value: i })));
  if (Number(first) < menu.options.length) menu.value = first || 0;
  drawNames();
  drawPredictions();
  draw();
}

function draw() {
  if (!answer || !drawable) return;
  const layout = plotLayout("head"), n = model.heads, z = answer.patterns.map((row) => row.length ? row : Array(n).fill(null));
  layout.xaxis.dtick = Math.ceil(n / 12);
  Object.assign(layout.yaxis, { autorange: "reversed", title: { text: "layer" }, dtick: Math.ceil(z.length / 10), showgrid: false });
  layout.xaxis.showgrid = false;
  drawPlot($("#followed .plot"), [{ type: "heatmap", z, customdata: answer.control_patterns, zmin: 0, colorscale: [[0, resolve("--panel")], [1, resolve("--trained")]], colorbar: { thickness: 10, outlinewidth: 0 },
    hovertemplate: "L%{y}H%{x}: %{z:.3~g}<br>control %{customdata:.3~g}<extra></extra>" }], layout);
  drawProbes();
}

function drawProbes() {
  if (!answer || !drawable) return;
  const nth = Number(menu.value || 0), layers = answer.probes.filter(({ moved }) => moved[nth]), x = layers.map(({ layer }) => layer), layout = plotLayout("layer");
  const line = (role, name, value) => ({ role, name, x, y: layers.map(({ moved }) => moved[nth][value]), text: x.map((layer) => `layer ${layer}, ${plotText(name)}`) });
  $("#probed").hidden = !layers.length;
  layout.xaxis.dtick = Math.ceil(x.length / 10);
  if (layers.length) drawLines($("#probed"), [line("intact", "before", "before"), line("ablated", "after", "after"), line("key", "control", "control"), line("chance", "target", "to")], layout);
}

function drawNames() {
  const most = each().filter(({ moved, control }) => moved > control).sort((a, b) => (b.moved - b.control) - (a.moved - a.control)).slice(0, MOST_NAMED);
  $("#followed .chips").replaceChildren(...most.map(({ layer, head, moved, control }) => {
    const button = element("button", `${nameOf(layer, head)} ${asFigure(moved)} (control ${asFigure(control)})`, { type: "button" });
    button.addEventListener("click", () => onPick(layer, head));
    return button;
  }));
}

function drawPredictions() {
  const table = $("#move-next");
  reading.headOf(table, ["Token", "Before", "After the move"]);
  const likely = [...answer.predictions].sort((a, b) => Math.max(b.before, b.after) - Math.max(a.before, a.after)).slice(0, MOST_NAMED);
  $("tbody", table).replaceChildren(...likely.map(({ token: word, before, after }) => {
    const row = element("tr");
    row.append(element("th", visible(word), { scope: "row" }), ...reading.cellsOf([asPercent(before), asPercent(after)]));
    return row;
  }));
}

return { setUp, setUpResults, showMoves, pick, drag: (from, to) => set({ ...moves(), [from]: to }), show, redraw: draw };
};
