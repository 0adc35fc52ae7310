// Where one head looks: heat maps, lines from token to token, and small pictures of all heads of its layer.
// `weightsOf` a condition, prompt and head are its weights [query key], or null; those of `signed` are differences.
// `quickly` shows the bare map at once, and puts CircuitsVis in its place, which takes longer than a person waits.
const headAttention = ({ conditions, signed, prompts, weightsOf, quickly = false }, column) => {
const { topOf, channels, paint } = headPictures;
const { $, $$, element, visible, plain, shortened, cut, asFigure, wholePercent, saveCsv, choice, showCircuits, setUpPictures, mapsPicture, drawn, placeOf } = common;
// Less is no line: each query would lead to every token.
const LEAST = 0.04, MOST_TOLD = 3, SOON = 150;
// CircuitsVis's own, in light and dark.
const WHITE = [255, 255, 255], BLUE = [0, 0, 255], RED = [255, 0, 0];
let prompt = 0, side = "both", shown = null, query = null, figure, waiting, later, ready = false;
// The tokens that the views show: until they are drawn again, those of the head before.
let written = [];

// ---------------------------------------------------------------- setting up

function setUp(box, select) {
  figure = box;
  if ($(".controls", figure)) {
    const { box: label, select: menu } = choice("prompt", "Prompt", prompts.map((tokens, p) => {
      const start = tokens.map(plain).join("").trim();
      return [p, `${p + 1}: ${cut(start, 40)}`];
    }));
    menu.addEventListener("change", () => { prompt = Number(menu.value); query = null; draw(); });
    $(".controls", figure).append(label);
  }
  if (conditions.length > 1) for (const [value, name] of [["both", "side by side"], ...conditions.map((condition) => [condition, condition])]) {
    const chip = element("button", name, { type: "button", "aria-pressed": value === side });
    chip.addEventListener("click", () => {
      side = value;
      for (const other of $$(".chips button", figure)) other.setAttribute("aria-pressed", other === chip);
      draw();
    });
    $(".chips", figure).append(chip);
  }
  $(".chips", figure).hidden = true;
  $(".pair", figure).append(...conditions.map(viewOf));
  $(".thumbs", figure)?.addEventListener("click", (event) => {
    const thumb = event.target.closest("[data-thumb]");
    if (thumb) select(Number(thumb.dataset.thumb));
  });
  $(".csv", figure).addEventListener("click", () => {
    const rows = conditions.flatMap((condition) => (weightsOf(condition, prompt, shown) ?? []).flatMap((row, q) => row.slice(0, q + 1).map((w, k) => [condition, q, k, w])));
    saveCsv(`attention-${column.name[shown]}-prompt-${prompt + 1}`, ["positions", "query", "key", "weight"], rows);
  });
  setUpPictures(figure, () => `attention-${column.name[shown]}-prompt-${prompt + 1}`, picture);
  new ResizeObserver(() => { if (ready && query !== null) look(query); }).observe($(".pair", figure));
}

// One condition: its heat map, and beside it the prompt, whose tokens show where they look.
function viewOf(condition) {
  const view = element("div", undefined, { "data-condition": condition, hidden: "" }), looks = element("div", undefined, { class: "looks" });
  const words = element("p", undefined, { class: "prompt", role: "listbox", "aria-label": `Tokens, ${condition}: where each looks` });
  looks.append(words, drawn("svg", { class: "lines", "aria-hidden": "true" }), element("p", undefined, { class: "told", role: "status" }));
  view.append(element("h4", condition), element("div", undefined, { class: "circuits", role: "group", "aria-label": `Attention pattern, ${condition}` }), looks);
  const tokenAt = (event) => event.target.closest?.("[data-token]");
  for (const type of ["pointerover", "focusin", "click"]) words.addEventListener(type, (event) => {
    const token = tokenAt(event);
    if (token) look(Number(token.dataset.token));
  });
  words.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -Infinity, End: Infinity }[event.key], last = written.length - 1;
    if (step === undefined) return;
    event.preventDefault();
    look(Math.min(last, Math.max(0, query + step)));
    $("[tabindex='0']", words).focus();
  });
  return view;
}

// ---------------------------------------------------------------- drawing

// Last, and once only where several heads are picked in a row: the views take longest to draw.
function show(head) {
  shown = head;
  clearTimeout(waiting);
  waiting = setTimeout(draw);
}

function draw() {
  if (!ready) return;
  const views = $$(".pair > div", figure), tokens = prompts[prompt], found = views.map((view) => weightsOf(view.dataset.condition, prompt, shown));
  const there = found.filter(Boolean).length;
  if (!there) return; // nothing was read yet
  const differs = (view) => view.dataset.condition === signed, top = topOf(found.filter((weights, v) => weights && !differs(views[v])));
  const whole = [];
  written = tokens;
  $(".chips", figure).hidden = there < 2;
  views.forEach((view, v) => {
    view.hidden = !found[v] || (there > 1 && side !== view.dataset.condition && (side !== "both" || differs(view)));
    view.weights = found[v];
    if (!found[v]) return;
    const most = differs(view) ? topOf([found[v]]) : top;
    if (!view.hidden && quickly) bare($(".circuits", view), found[v]);
    if (!view.hidden) whole.push(() => showCircuits($(".circuits", view), CircuitsVis.AttentionPattern, { attention: found[v], tokens: tokens.map(shortened), maskUpperTri: true, minValue: differs(view) ? -most : 0, maxValue: most }));
    $(".prompt", view).replaceChildren(...tokens.map((token, t) => element("span", plain(token), { "data-token": t, role: "option", tabindex: -1, title: `token ${t}: ${visible(token)}` })));
  });
  $(".pair", figure).classList.toggle("single", views.filter((view) => !view.hidden).length < 2);
  $(".top", figure).textContent = ` Full colour from a weight of ${asFigure(top)}.`;
  if ($(".thumbs", figure)) drawThumbs();
  query = query === null || query < tokens.length ? query : null;
  look(query ?? Math.max(tokens.findLastIndex((token) => /\p{L}/u.test(token)), 0));
  clearTimeout(later);
  const finish = () => { for (const one of whole) one(); };
  if (quickly) later = setTimeout(finish, SOON);
  else finish();
}

function bare(box, weights) {
  const map = paint(weights, WHITE, BLUE, RED);
  map.className = "bare";
  box.replaceChildren(map);
}

// Lines from one token to those it attends to, under every condition.
function look(token) {
  if (token >= written.length) return;
  query = token;
  for (const view of $$(".pair > div", figure)) if (!view.hidden) lookIn(view, token);
}

function lookIn(view, token) {
  const words = $$("[data-token]", view), weights = view.weights[token], top = Math.max(...weights, LEAST), lines = $(".lines", view), box = lines.getBoundingClientRect();
  words.forEach((word, t) => {
    word.tabIndex = t === token ? 0 : -1;
    word.setAttribute("aria-selected", t === token);
    word.style.setProperty("--near", t <= token && weights[t] >= LEAST ? weights[t] / top : 0);
  });
  const from = placeOf(words[token]);
  lines.replaceChildren(...weights.flatMap((weight, t) => {
    const to = weight >= LEAST && placeOf(words[t]);
    if (!to || !from) return [];
    const x1 = from.left + from.width / 2 - box.left, y1 = from.top - box.top, x2 = to.left + to.width / 2 - box.left, above = to.bottom < from.top + 2;
    const y2 = (above ? to.bottom : to.top) - box.top, middle = above ? (y1 + y2) / 2 : Math.min(y1, y2) - 6 - Math.min(14, 0.12 * Math.abs(x2 - x1));
    const width = 0.8 + 3.2 * weight / top;
    // A token's line to itself is a small loop.
    const path = t === token ? `M${x1 - 3} ${y1}C${x1 - 9} ${y1 - 12} ${x1 + 9} ${y1 - 12} ${x1 + 3} ${y1}` : `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`;
    return [drawn("path", { d: path, "stroke-width": width, "stroke-opacity": 0.25 + 0.6 * weight / top, "data-key": t })];
  }));
  const most = weights.map((weight, t) => [weight, t]).filter(([weight]) => weight >= LEAST).sort(([a], [b]) => b - a).slice(0, MOST_TOLD);
  const name = (t) => `“${visible(written[t])}” (${t})`, looks = view.dataset.condition === signed ? "looks more at" : "looks at";
  $(".told", view).textContent = `${name(token)} ${looks} ${most.map(([weight, t]) => `${name(t)} ${wholePercent(weight)}`).join(", ") || "no token in particular"}.`;
}

// ---------------------------------------------------------------- small pictures

function drawThumbs() {
  const low = channels("--panel"), high = channels("--trained"), layer = column.layer[shown], chosen = conditions.filter((condition) => side === "both" || side === condition);
  const heads = [...column.name.keys()].filter((i) => column.layer[i] === layer);
  $(".thumbs", figure).replaceChildren(...heads.map((i) => {
    const thumb = element("button", undefined, { type: "button", "data-thumb": i, "aria-pressed": i === shown, "aria-label": `${column.name[i]}, ${column.label[i] ?? "no label"}` });
    const name = element("span", column.name[i]);
    name.append(element("small", column.label[i] ?? "no label"));
    thumb.append(...chosen.map((condition) => paint(weightsOf(condition, prompt, i), low, high)), name);
    return thumb;
  }));
}

// ---------------------------------------------------------------- as a file

function picture() {
  const low = channels("--paper"), high = channels("--trained"), below = channels("--random-init");
  const maps = $$(".pair > div", figure).filter((view) => !view.hidden).map((view) => ({ name: view.dataset.condition, canvas: paint(view.weights, low, high, below) }));
  return mapsPicture(column.name[shown], maps, written.map(shortened), maps.length);
}

return { setUp, show, draw, look, start: () => { ready = true; draw(); } };
};
