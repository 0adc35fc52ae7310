// One head: its scores, where it looks, which frequencies it uses, and which heads feed it.
const exploreHead = ({ look, onPick }) => {
const { $, element, asFigure, whenSeen, plotLayout, saveCsv, setUpPictures } = common;
const { swatch } = look, { drawLines, frequencyTicks } = headLines;
const CONDITIONS = ["before", "after", "difference"], DIFFERENCE = "difference";
const column = { name: [""], layer: [0], head: [0], label: [null] }, prompts = [[]];
let answer = null, patterns = {}, seen = false;
const attention = headAttention({ conditions: CONDITIONS, signed: DIFFERENCE, prompts, quickly: true, weightsOf: (condition) => patterns[condition] ?? null }, column);

function setUp() {
  attention.setUp($("#attention"), () => {});
  setUpPictures($("#usage"), () => `frequencies-${column.name[0]}`);
  $("#usage .csv").addEventListener("click", () => saveCsv(`frequencies-${column.name[0]}`, ["rank", "radians_per_token", "share"], answer.frequencies.radians.map((r, f) => [f, r, answer.frequencies.share[f]])));
}

// What draws a head takes seconds to be unpacked: the tokens and the small pictures stand before that.
function startDrawing() {
  whenSeen($("#attention"), "circuitsvis", attention.start);
  whenSeen($("#usage"), "plotly", () => { seen = true; drawUsage(); });
}

function factsOf(read) {
  const { layer, head } = answer, facts = Object.entries(answer.scores).filter(([, score]) => score !== null).map(([metric, score]) => {
    const after = read?.after?.scores[metric]?.[layer]?.[head];
    return [metric.replaceAll("_", " "), asFigure(score) + (after === undefined || after === null ? "" : ` → ${asFigure(after)}`)];
  });
  if (read?.difference) facts.push(["attention changed by", asFigure(read.difference.patterns[layer][head])]);
  return facts;
}

function show(found, read) {
  answer = found;
  const before = square(unpacked(answer.before)), after = answer.after && square(unpacked(answer.after));
  patterns = after ? { before, after, difference: lessen(after, before) } : { before };
  prompts[0] = answer.tokens;
  for (const [name, value] of Object.entries({ name: nameOf(answer.layer, answer.head), layer: answer.layer, head: answer.head, label: answer.label })) column[name][0] = value;
  // Before and after are compared by one method, which is live.
  const now = read?.after?.labels[answer.layer][answer.head], was = now ? read.before.labels[answer.layer][answer.head] : answer.label;
  $("#head-title").replaceChildren(`${column.name[0]} `, swatch(was), was, ...(now ? [" → ", swatch(now), now] : []));
  $("#head .facts").replaceChildren(...factsOf(read).map(([name, value]) => {
    const fact = element("div");
    fact.append(element("span", name), element("b", value));
    return fact;
  }));
  attention.show(0);
  drawUsage();
  showFeeds({ feeds: [], why: "" }); // the former head's: this one's come later
}

function drawUsage() {
  const figure = $("#usage"), used = answer?.frequencies ?? null;
  figure.hidden = !used;
  if (!used || !seen) return;
  const layout = plotLayout("radians per token"), x = used.share.map((_, f) => f), alike = 1 / used.share.length;
  Object.assign(layout.xaxis, frequencyTicks(used.radians, 6));
  layout.yaxis.rangemode = "tozero";
  const text = used.radians.map((r) => `${asFigure(r)} rad/token`);
  drawLines(figure, [{ role: "intact", name: "share", x, y: used.share, text }, { role: "chance", name: "equal use", x, y: x.map(() => alike), text }], layout);
  $("figcaption", figure).textContent = `Share of each frequency in |q||k|, the product of the lengths of queries and keys. The highest quarter has ${asPercent(used.high)}; equal use would give ${asPercent(used.chance)}.`;
}

function showFeeds({ feeds, chance, why }) {
  $("#feeds ol").replaceChildren(...feeds.map(({ layer, head, label, score }) => {
    const item = element("li"), button = element("button", nameOf(layer, head), { type: "button" });
    button.addEventListener("click", () => onPick(layer, head));
    item.append(button, " ", swatch(label), `${label}, ${asFigure(score)}`);
    return item;
  }));
  $("#feeds .note").textContent = feeds.length ? `K-composition: how well this head's key weights fit an earlier head's output weights, from 0 to 1. A tenth of all pairs with this layer exceed ${asFigure(chance)}.` : why;
}

return { setUp, startDrawing, show, showFeeds, redraw: () => { if (answer) { drawUsage(); attention.draw(); } }, lookAt: attention.look, savePicture: () => $("#attention .picture[data-kind='svg']").click() };
};
