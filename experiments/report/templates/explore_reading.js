// The prompt's tokens with their surprisal, and what the model expects next.
const exploreReading = ({ state, sides }) => {
const { $, $$, element, drawn, visible, plain, asFigure, tips, placeOf } = common;
const tokens = $("#tokens"), SHOWN = 7;
let read = null, query = 0, picked = () => {}, dragged = () => {}, from = null;

// ---------------------------------------------------------------- tokens

// The token is not the first word: a line of ours begins with a capital letter, and a token as it is.
const name = (t) => `Token ${t} · “${visible(read.tokens[t])}”`;
function linesOf(t) {
  const lines = [name(t)], nats = (value) => value === null ? "–" : `${asFigure(value)} nats`;
  if (!read.after) return [...lines, `surprisal ${nats(read.before.surprisal[t])}`];
  return [...lines, `surprisal before ${nats(read.before.surprisal[t])}`, `after ${nats(read.after.surprisal[t])}`, `difference ${signed(read.difference.surprisal[t])}`];
}

function shadesOf() {
  const side = sides.shown(), both = [read.before, read.after].filter(Boolean).flatMap((reading) => reading.surprisal);
  const values = side === "difference" ? read.difference.surprisal : (side === "after" ? read.after : read.before).surprisal;
  const top = Math.max(1e-9, ...(side === "difference" ? values : both).map((value) => Math.abs(value ?? 0)));
  return values.map((value) => ({ near: Math.abs(value ?? 0) / top, own: side === "difference" && value < 0 ? "--trained" : "--random-init" }));
}

function drawTokens() {
  const shades = shadesOf();
  tokens.replaceChildren(...read.tokens.map((token, t) => {
    const box = element("span", plain(token), { role: "option", "data-token": t, "aria-label": linesOf(t).join(", "), tabindex: -1 });
    box.style.setProperty("--near", shades[t].near);
    box.style.setProperty("--own", `var(${shades[t].own})`);
    return box;
  }));
  mark(Math.min(query, read.tokens.length - 1));
  drawMoves();
}

function mark(t) {
  query = t;
  for (const box of $$("[data-token]", tokens)) {
    const here = Number(box.dataset.token) === t;
    box.tabIndex = here ? 0 : -1;
    box.setAttribute("aria-selected", here);
  }
  $("#token-told").textContent = linesOf(t).join(": ").replace(": after", ", after").replace(": difference", ", difference");
}

const tokenAt = (target) => {
  const box = target?.closest?.("#tokens [data-token]");
  return box ? Number(box.dataset.token) : null;
};

function setUpTokens() {
  tips(tokens, "[data-token]", (box) => linesOf(Number(box.dataset.token)));
  tokens.addEventListener("click", (event) => {
    const t = tokenAt(event.target);
    if (t === null) return;
    mark(t);
    picked(t);
  });
  tokens.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !read) return;
    event.preventDefault();
    mark(Math.min(read.tokens.length - 1, Math.max(0, query + step)));
    picked(query);
    $("[tabindex='0']", tokens).focus();
  });
  // A token dropped onto another one.
  const target = (t) => { for (const box of $$("[data-token]", tokens)) box.toggleAttribute("data-target", t !== null && t !== from && Number(box.dataset.token) === t); };
  const under = (event) => tokenAt(document.elementFromPoint(event.clientX, event.clientY));
  tokens.addEventListener("pointerdown", (event) => { if (tokens.classList.contains("drags") && event.button === 0) from = tokenAt(event.target); });
  addEventListener("pointermove", (event) => { if (from !== null) target(under(event)); });
  addEventListener("pointercancel", () => { from = null; target(null); });
  addEventListener("pointerup", (event) => {
    const to = from === null ? null : under(event), started = from;
    from = null;
    target(null);
    if (to !== null && to !== started) dragged(started, to);
  });
  new ResizeObserver(() => { if (read) drawMoves(); }).observe(tokens);
  tokens.addEventListener("scroll", drawMoves);
}

// An arrow from each moved token to the one whose code it gets.
function drawMoves() {
  const svg = $("#arrows"), box = svg.getBoundingClientRect(), at = (t) => { const of = $(`[data-token="${t}"]`, tokens); return of && placeOf(of); };
  svg.replaceChildren(...Object.entries(state.get().move?.moves ?? {}).flatMap(([t, to]) => {
    const start = at(t), end = at(to);
    if (!start || !end) return [];
    const x1 = start.left + start.width / 2 - box.left, x2 = end.left + end.width / 2 - box.left, y1 = start.top - box.top, y2 = end.top - box.top;
    const top = Math.min(y1, y2) - 8, d = `M${x1} ${y1}C${x1} ${top} ${x2} ${top} ${x2} ${y2}m-4 -5l4 5l4 -5`;
    return [drawn("path", { d, "data-move": `${t} ${to}` })];
  }));
}

// ---------------------------------------------------------------- what comes next

function cellsOf(values) {
  return values.map((value) => element("td", value, { class: "num" }));
}

function barOf(share, role) {
  const cell = element("td", undefined, { class: "bars" }), bar = element("span", undefined, { class: "bar" });
  bar.style.setProperty("--part", 100 * share);
  bar.style.setProperty("--own", `var(${role})`);
  cell.append(bar);
  return cell;
}

function headOf(table, names) {
  const row = element("tr");
  row.append(...names.map((name, n) => element("th", name, n ? { scope: "col", class: "num" } : { scope: "col" })));
  $("thead", table).replaceChildren(row);
}

function drawNext() {
  const table = $("#next");
  if (!read.after) {
    headOf(table, ["Token", "Probability", ""]);
    return $("tbody", table).replaceChildren(...read.before.predictions.slice(0, SHOWN).map(({ token, probability }) => {
      const row = element("tr");
      row.append(element("th", visible(token), { scope: "row" }), ...cellsOf([asPercent(probability)]), barOf(probability, "--trained"));
      return row;
    }));
  }
  headOf(table, ["Token", "Before", "After", "Points"]);
  const all = [...read.difference.predictions].sort((a, b) => Math.max(b.before, b.after) - Math.max(a.before, a.after));
  $("tbody", table).replaceChildren(...all.slice(0, SHOWN).map(({ token, before, after }) => {
    const row = element("tr"), points = Number((100 * (after - before)).toFixed(1));
    row.append(element("th", visible(token), { scope: "row" }), ...cellsOf([asPercent(before), asPercent(after), `${points > 0 ? "+" : points < 0 ? "−" : ""}${Math.abs(points).toFixed(1)}`]));
    return row;
  }));
}

// ---------------------------------------------------------------- in a sentence

const likeliest = ({ predictions: [first] }) => first ? `“${visible(first.token)}”` : "nothing";
// Parts of characters look alike: only their numbers tell them apart.
function nextWords(before, after) {
  const [was, now] = [before, after].map(({ predictions: [first] }) => first?.id), names = [before, after].map(likeliest);
  if (was === now) return `The model still expects ${names[1]} next.`;
  const [old, one] = names[0] === names[1] ? [`${names[0]} (token id ${was})`, `${names[1]} (token id ${now})`] : names;
  return `The model expects ${one} next, no longer ${old}.`;
}

function counts(labels) {
  const found = new Map();
  for (const label of labels.flat()) found.set(label, (found.get(label) ?? 0) + 1);
  return found;
}

// The labels that no head keeps, and those that fewer have, of most heads first.
const MOST_LOST = 3;
const either = (all) => all.length > 1 ? `${all.slice(0, -1).join(", ")} or ${all.at(-1)}` : all[0];
function lost() {
  const before = counts(read.before.labels), after = counts(read.after.labels);
  const fewer = [...before].map(([label, n]) => [label, n, after.get(label) ?? 0]).filter(([label, n, left]) => label !== "none" && left < n).sort((a, b) => (b[1] - b[2]) - (a[1] - a[2]));
  const gone = fewer.filter(([, , left]) => !left).map(([label]) => label), some = fewer.filter(([, , left]) => left).slice(0, MOST_LOST);
  return [
    ...(gone.length ? [` No ${either(gone)} head is left.`] : []),
    ...(some.length ? [` Fewer heads: ${some.map(([label, n, left]) => `${label} ${n} to ${left}`).join(", ")}.`] : []),
  ].join("");
}

const MOST_SAID = 6, few = (all) => all.length > MOST_SAID ? [...all.slice(0, MOST_SAID), `${all.length - MOST_SAID} more`] : all;

// What was changed in what is shown, in words: the next change may be asked for already.
function changes() {
  const { positions, layers, heads, head_changes: changed = [] } = read.of.change ?? {};
  const where = heads ? few(heads.map((one) => nameOf(...one))).join(", ") : layers ? `layers ${few(layers).join(", ")}` : "all layers";
  return [...(positions ? [`${positions} in ${where}`] : []), ...few(changed.map(({ layer, head, to }) => `${nameOf(layer, head)} ${HEAD_CHANGES[to] ?? to}`))];
}

function sentence() {
  const { before, after } = read, rounded = (loss) => loss === null ? "–" : asFigure(loss);
  if (!after) return `The model expects ${likeliest(before)} next, with a probability of ${asPercent(before.predictions[0]?.probability ?? 0)}. Its loss is ${rounded(before.loss)} nats per token.`;
  return `Loss goes from ${rounded(before.loss)} to ${rounded(after.loss)} nats per token.${lost()} ${nextWords(before, after)}`;
}

function show(answer = read) {
  read = answer;
  if (!read) return;
  sides.offer(Boolean(read.after));
  drawTokens();
  drawNext();
  $("#said").textContent = sentence();
  $("#notes").replaceChildren(...[...(read.after ? [`Changed: ${changes().join("; ")}.`] : []), ...read.notes].map((note) => element("li", note)));
}

function setUp(onPick, onDrag) {
  picked = onPick;
  dragged = onDrag;
  setUpTokens();
}

return { setUp, show, drawTokens: () => read && drawTokens(), drawMoves, headOf, cellsOf, tokens: () => read?.tokens ?? [] };
};
