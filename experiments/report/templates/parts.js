// What a reader opens, points at and switches: words with their meanings, parts, dark and light, paper.
Object.assign(common, (() => {
const { $, $$, element, inflated, library, waiting, drawWaiting, forgetColours } = common;

// ---------------------------------------------------------------- words and their meanings

const tip = document.body.appendChild(element("div", undefined, { id: "tip", role: "tooltip" }));
tip.hidden = true;
function showTip(lines, x, y) {
  tip.replaceChildren(...lines.map((line) => element("div", line)));
  tip.hidden = false;
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 10 : y + 18}px`;
}
// Hover and keyboard focus both show `linesOf` the element that `selector` finds.
function tips(root, selector, linesOf) {
  // Roots lie within one another: each takes away only what it has shown itself.
  let mine = false;
  const off = () => {
    if (mine) tip.hidden = true;
    mine = false;
  };
  const on = (event) => {
    const item = event.target.closest?.(selector);
    if (!item) return off();
    mine = true;
    const box = item.getBoundingClientRect(), pointed = event.type === "pointermove";
    showTip(linesOf(item), pointed ? event.clientX : box.left, pointed ? event.clientY : box.bottom - 10);
  };
  for (const type of ["pointermove", "focusin"]) root.addEventListener(type, on);
  for (const type of ["pointerleave", "focusout"]) root.addEventListener(type, off);
}
addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
// Not on every scroll: the focus of a word below the window scrolls, too.
for (const type of ["wheel", "touchmove"]) addEventListener(type, () => { tip.hidden = true; }, { passive: true });

// Arrow keys move between the cells of a grid; the grid itself is one stop of the tab key.
function walk(event, grid, width) {
  const cells = $$("[role=gridcell]", grid), at = cells.indexOf(document.activeElement);
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width };
  const step = steps[event.key];
  if (step === undefined || at < 0) return;
  event.preventDefault();
  let to = at + step;
  while (cells[to]?.disabled) to += step;
  if (!cells[to]) return;
  cells[at].tabIndex = -1;
  cells[to].tabIndex = 0;
  cells[to].focus();
}

// The sentence of the glossary's entry that begins with this word, else its first one. The use table is of removal,
// whose rules stand last.
function sentence(entry, word, removal) {
  const all = $("dd", entry).textContent.split(/(?<=\.)(?<!\bal\.)\s/), said = word.toLowerCase();
  const begins = (...ends) => all.filter((one) => ends.some((end) => one.toLowerCase().startsWith(said + end)));
  return begins(":", "s:", "d:").at(removal ? -1 : 0) ?? begins(" ")[0] ?? all[0];
}
const byRemoval = (at) => Boolean($("#use")) && (!$("#follow") || at.closest("#use") !== null);
function meaning(link) {
  const entry = document.querySelector(link.hash ?? link.dataset.term);
  return [$("dt", entry).textContent, sentence(entry, link.textContent, byRemoval(link))];
}

// What is somebody's text, or leads somewhere already, stays as it is.
const APART = "a, button, select, option, summary:not(.measured > *), pre, code, script, style, svg, h1, .plot, .circuits, .prompt, .strip, .thumbs, .sortable, .info, .key, .brief, #claims dd, #glossary, #tip";
// In each part the first of every word of the glossary leads to its meaning, and each verdict of an entry to its own;
// words that a page never says are left out of it. What a probe reads is undecided by a rule of its own.
function linkWords() {
  const entries = $$("#glossary [data-words]");
  if (!entries.length) return;
  const leads = new Set($$("a.term").map((link) => link.hash));
  const known = new RegExp(entries.map(({ dataset }) => `(?<![\\w-])(${dataset.words})(?![\\w-])`).join("|"), "i");
  for (const root of [$("header"), ...parts()]) {
    const meant = (entry, word, at) => `${entry.id} ${sentence(entry, word, byRemoval(at))}`;
    const explicit = $$("a.term", root), told = new Set(explicit.map((link) => meant($(link.hash), link.textContent, link)));
    const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      if (text.parentElement.closest(APART)) continue;
      for (let from = 0, found; (found = known.exec(text.data.slice(from)));) {
        const at = from + found.index, around = text.parentElement, reads = found[0] === "undecided" && around.closest("[data-reads]");
        const entry = reads ? $("#term-readable") : entries[found.slice(1).findIndex((words) => words !== undefined)];
        from = at + found[0].length;
        const own = meant(entry, found[0], around);
        if (told.has(own) || !around.closest(entry.dataset.where)) continue;
        told.add(own);
        leads.add(`#${entry.id}`);
        const link = element("a", found[0], { class: "term", href: `#${entry.id}` });
        text = text.splitText(at);
        text.deleteData(0, found[0].length);
        text.before(link);
        texts.currentNode = text;
        from = 0;
      }
    }
  }
  // What a button says cannot lead anywhere else, but tells its meaning too.
  for (const button of $$(".legend button, .sortable thead button")) {
    const entry = entries.find(({ dataset }) => new RegExp(`^(?:${dataset.words})$`, "i").test(button.textContent) && button.closest(dataset.where));
    if (entry) leads.add(button.dataset.term = `#${entry.id}`);
  }
  for (const entry of entries) if (!leads.has(`#${entry.id}`)) entry.remove();
}

// ---------------------------------------------------------------- parts that open

const parts = () => $$("details.part");
// An address may hold whatever a person has typed.
function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
// What an address or a link names is opened, and everything around it.
function reveal(id) {
  const target = document.getElementById(unescaped(id));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  return target;
}

function setUpParts() {
  const all = $("#open-all"), shown = () => parts().every((part) => part.open);
  const say = () => {
    all.textContent = shown() ? "Close all" : "Open all";
  };
  all?.addEventListener("click", () => {
    const open = !shown();
    for (const part of parts()) part.open = open;
  });
  if (all) for (const part of parts()) part.addEventListener("toggle", say);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#"]');
    // Inside a notebook's frame the address alone would not lead there.
    if (link && reveal(link.hash.slice(1))) setTimeout(() => reveal(link.hash.slice(1)).scrollIntoView());
  });
  if (location.hash) reveal(location.hash.slice(1))?.scrollIntoView();
  addEventListener("hashchange", () => reveal(location.hash.slice(1)));
  for (const button of $$(".copy")) button.addEventListener("click", async () => {
    await copied($("code", button.parentElement));
    button.textContent = "Copied";
  });
  tips(document.body, "a.term, [data-term]", meaning);
}

// In a page opened from a file the clipboard may be closed: then the words are marked, to be copied by hand.
async function copied(box) {
  try {
    await navigator.clipboard.writeText(box.textContent);
  } catch {
    getSelection().selectAllChildren(box);
    document.execCommand("copy");
  }
}

// ---------------------------------------------------------------- dark, light, paper

function setUpTheme(draw) {
  const redraw = () => { forgetColours(); draw(); };
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  $("#theme").addEventListener("click", () => {
    const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    redraw();
  });
  dark.addEventListener("change", redraw);
  // Paper is white and shows everything: draw for it, then go back.
  let before, open;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    open = parts().map((part) => part.open);
    root.dataset.theme = "light";
    for (const part of parts()) part.open = true;
    if (window.Plotly) for (const box of [...waiting.keys()]) if (waiting.get(box).name === "plotly") drawWaiting(box);
    redraw();
  });
  addEventListener("afterprint", () => {
    before ? root.dataset.theme = before : delete root.dataset.theme;
    parts().forEach((part, i) => { part.open = open[i]; });
    redraw();
  });
}

// The page's data, then its own script; what is not seen at once is made ready while nobody waits.
// A live page, which somebody uses all the time, is never idle.
async function start(main, { idle = true } = {}) {
  setUpParts();
  main(JSON.parse(await inflated("report-data")));
  linkWords();
  document.documentElement.classList.add("ready");
  if (idle) (window.requestIdleCallback ?? setTimeout)(() => library("plotly"));
}

return { setUpTheme, start, tips, walk, copied, unescaped };
})());
