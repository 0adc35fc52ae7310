// One head: its label, attention, distances, frequencies and scores. And what words and colours heads have.
const headPanel = (page) => {
const { $, element, saveCsv, choice, plotLayout, whenSeen, drawn, setUpPictures, asFigure, wholePercent } = common;
const { conditions, metrics, labels } = page;
const ABLATED = conditions[1];
const ROLES = ["intact", "ablated"];
const column = Object.fromEntries(page.heads.columns.map((c) => [c.name, c.values]));
const numberOf = new Map(column.name.map((name, i) => [name, i]));
// Arrays by layer have a row for each layer with heads.
const layers = [...new Set(column.layer)], rowOf = (i) => layers.indexOf(column.layer[i]);
const words = (name) => name.replaceAll("_", " ");
let shown = null;
const attention = $("#attention") && headAttention({ conditions: conditions.filter((condition) => condition in page.patterns), prompts: page.prompts, weightsOf }, column);
const { PLAIN, colourOf, initials, swatch } = labelLook(labels);
const { LINES, drawLines, frequencyTicks } = headLines;

// The weights [query key] of one head, unpacked only when it is looked at.
function weightsOf(condition, prompt, head) {
  const bytes = atob(page.patterns[condition][prompt][rowOf(head)][column.head[head]]), n = page.prompts[prompt].length;
  let at = 0;
  return Array.from({ length: n }, (_, q) => Array.from({ length: n }, (_, k) => k > q ? 0 : Math.round(bytes.charCodeAt(at++) / 0.255) / 1000));
}

const percent = (share) => share === null ? "–" : wholePercent(share);
const probability = (p) => p !== null && p < 0.0001 ? "< 0.0001" : asFigure(p);
const interval = (low, high) => low === null || low === undefined ? "" : ` [${asFigure(low)}, ${asFigure(high)}]`;

// ---------------------------------------------------------------- the panel

function showHead(i) {
  shown = i;
  const title = $("#head-title"), label = column.label[i];
  title.replaceChildren(`${column.name[i]} `, swatch(label), label ?? "no label");
  $("#head-menu select").value = column.name[i];
  const facts = [["Confidence", percent(column.confidence[i])], ["p against permutation", probability(column.p_shuffled[i])],
    ["p against untrained heads", probability(column.p_random_init[i])], ["q over all heads", probability(column.q_value[i])],
    ["Next best label", column.runner_up[i] || "–"]];
  if (column.settled_at) facts.push(["Sequences until its final label", column.settled_at[i] ?? "–"]);
  for (const [name, told] of [["finds_previous_by", "Finds the token before by"], ["finds_itself_by", "Finds its own token by"]])
    if (column[name]?.[i]) facts.push([told, column[name][i]]);
  if (column.own_label) facts.push(["Your label", column.own_label[i] ?? "–"]);
  if (ABLATED) facts.push([`Label under ${ABLATED}`, column.ablated_label[i] ?? "–"], ["Dependence", column.dependence[i] || "–"],
    ["Retention", asFigure(column.retention[i]) + interval(column.retention_low[i], column.retention_high[i])]);
  // A rule that is not tested against a null has no p of it.
  const told = facts.filter(([name, value]) => !name.startsWith("p against") || value !== "–");
  $("#head .facts").replaceChildren(...told.map(([name, value]) => {
    const fact = element("div");
    fact.append(element("span", name), element("b", value));
    return fact;
  }));
  redrawPanel();
  drawScores();
  attention?.show(i);
}

// `select` is called with the number of the head that the panel's menu picks.
function setUpPanel(select) {
  const { box, select: menu } = choice("head", "Head", column.name.map((name, i) => [name, `${name} ${column.label[i] ?? ""}`]));
  menu.addEventListener("change", () => select(numberOf.get(menu.value)));
  $("#head-menu").append(box);
  // What is drawn waits until it is seen; later picks find it ready.
  if (attention) {
    attention.setUp($("#attention"), select);
    whenSeen($("#attention"), "circuitsvis", attention.start);
  }
  for (const [id, draw] of [["#profile", drawProfile], ["#usage", drawUsage]]) if ($(id)) whenSeen($(id), "plotly", () => { ready.add(id); draw(); });
  saveHeadNumbers();
}

const ready = new Set();

function redrawPanel() {
  drawProfile();
  drawUsage();
}

// In other colours: the small pictures too.
function recolourPanel() {
  redrawPanel();
  attention?.draw();
}

// -- its numbers by distance and by frequency

function profilesOf(i) {
  const lines = Object.entries(page.profiles).map(([condition, profile]) =>
    ({ role: ROLES[conditions.indexOf(condition)], name: condition, y: profile[rowOf(i)][column.head[i]] }));
  if (page.chance) lines.push({ role: "chance", name: "chance", y: page.chance });
  return lines;
}

function drawProfile() {
  const figure = $("#profile");
  if (!ready.has("#profile")) return;
  const layout = plotLayout("tokens back from the query");
  layout.yaxis.rangemode = "tozero";
  drawLines(figure, profilesOf(shown).map((line) => ({ ...line, x: line.y.map((_, offset) => offset), text: line.y.map((_, offset) => `${offset} back`) })), layout);
}

const radiansOf = (i) => page.frequencies.radians[rowOf(i)];
const usageOf = (i) => ["query", "key"].map((role) => ({ role, name: `${role} norm`, y: page.frequencies[`${role}_norm`][rowOf(i)][column.head[i]] }));

function drawUsage() {
  const figure = $("#usage"), plot = ready.has("#usage") && $(".plot", figure);
  if (!plot) return;
  const radians = radiansOf(shown), rotates = radians.some((r) => r !== null);
  for (const part of [plot, $(".legend", figure), $("figcaption", figure), $(".save", figure)]) part.hidden = !rotates;
  $(".empty", figure).hidden = rotates;
  if (!rotates) return;
  const layout = plotLayout("radians per token, highest frequency first"), x = radians.map((_, f) => f);
  Object.assign(layout.xaxis, frequencyTicks(radians, 8));
  layout.yaxis.rangemode = "tozero";
  drawLines(figure, usageOf(shown).map((line) => ({ ...line, x, text: radians.map((r) => `${asFigure(r)} rad/token`) })), layout);
}

// -- its scores

function scaleOf(metric) {
  const names = ["", "_low", "_high", "_chance", "_ablated"].map((end) => column[metric + end]);
  const values = names.flat().filter((v) => v !== null), low = Math.min(0, ...values), high = Math.max(...values, low + 1e-9);
  return (value) => 2 + 96 * (value - low) / (high - low);
}
const scales = Object.fromEntries(metrics.map((metric) => [metric, scaleOf(metric)]));

function drawScores() {
  const i = shown, figure = $("#scores"), head = element("tr"), ablated = ABLATED ? [`Ablated: ${ABLATED}`] : [];
  for (const [n, name] of ["Measure", "Intact", "95% interval", "Chance", ...ablated, "On one scale"].entries())
    head.append(element("th", name, n && name !== "On one scale" ? { scope: "col", class: "num" } : { scope: "col" }));
  $("thead", figure).replaceChildren(head);
  $("tbody", figure).replaceChildren(...metrics.map((metric) => {
    const row = element("tr"), at = (end) => column[metric + end]?.[i] ?? null, value = element("td", undefined, { class: "num" });
    value.append(element("strong", asFigure(at(""))));
    row.append(element("th", words(metric), { scope: "row" }), value, element("td", at("_low") === null ? "–" : `${asFigure(at("_low"))} to ${asFigure(at("_high"))}`, { class: "num" }),
      element("td", asFigure(at("_chance")), { class: "num" }));
    if (ABLATED) row.append(element("td", asFigure(at("_ablated")) + interval(at("_ablated_low"), at("_ablated_high")), { class: "num" }));
    const cell = element("td", undefined, { class: "dots" });
    cell.append(dots(scales[metric], at));
    row.append(cell);
    return row;
  }));
}

function dots(scale, at) {
  const svg = drawn("svg", { viewBox: "0 0 100 16", preserveAspectRatio: "none", "aria-hidden": "true" });
  const line = (kind, from, to, y1, y2) => from !== null && to !== null && svg.append(drawn("line", { class: kind, x1: scale(from), x2: scale(to), y1, y2 }));
  line("chance", at("_chance"), at("_chance"), 1, 15);
  line("interval intact", at("_low"), at("_high"), 8, 8);
  line("value intact", at(""), at(""), 3, 13);
  if (ABLATED) line("value ablated", at("_ablated"), at("_ablated"), 3, 13);
  return svg;
}

// -- its numbers as files

function saveHeadNumbers() {
  const name = (what) => `${what}-${column.name[shown]}`;
  for (const id of ["profile", "usage"]) if ($(`#${id}`)) setUpPictures($(`#${id}`), () => name(id));
  $("#profile .csv")?.addEventListener("click", () => saveCsv(name("distance"), ["positions", "tokens_back", "weight"],
    profilesOf(shown).flatMap((line) => line.y.map((y, offset) => [line.name, offset, y]))));
  $("#usage .csv")?.addEventListener("click", () => {
    const [query, key] = usageOf(shown);
    saveCsv(name("frequencies"), ["rank", "radians_per_token", "query_norm", "key_norm"], radiansOf(shown).map((r, f) => [f, r, query.y[f], key.y[f]]));
  });
  const ends = ["", "_low", "_high", "_chance", "_ablated"];
  $("#scores .csv").addEventListener("click", () => saveCsv(name("scores"), ["metric", "value", "ci_low", "ci_high", "chance", "ablated"],
    metrics.map((metric) => [metric, ...ends.map((end) => column[metric + end][shown])])));
}

return { column, layers, rowOf, numberOf, words, probability, interval, PLAIN, colourOf, initials, swatch, LINES, drawLines, frequencyTicks, setUpPanel, showHead,
  recolourPanel };
};
