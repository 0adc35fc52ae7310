// The live page: asks what its state needs, draws what it is answered. It computes no science.
common.start(async (page) => {
const { $, $$, element, saveBlob, setUpTheme, copied, cut } = common;
const answers = { read: null, head: null, fit: null, move: null, patch: null, code: null, feeds: null };
const state = exploreState(refresh);

// ---------------------------------------------------------------- what is said meanwhile

const asks = new Set();
const DOING = { read: "Reading the prompt …", fit: "Fitting position codes and probes …", move: "Moving …", save: "Saving the page …" };
const said = {
  sorry(name, sentence) {
    $("#sorry").textContent = sentence.slice(0, 1).toUpperCase() + sentence.slice(1);
    $("#sorry").dataset.of = name;
    $("#sorry").hidden = false;
  },
  // A prompt that is read ends every complaint, any other answer those about it.
  fine(name) { if (name === "read" || name === $("#sorry").dataset.of) $("#sorry").hidden = true; },
  busy(name, now) {
    const part = { read: "#bench", head: "#head", feeds: "#feeds", move: "#moved" }[name];
    if (part) $(part).setAttribute("aria-busy", now);
    if (name === "patch") patch.busy(now);
    now ? asks.add(name) : asks.delete(name);
    $("#bench").dataset.asks = [...asks].join(" ");
    const doing = [...asks].map((one) => DOING[one]).find(Boolean);
    $("#busy").hidden = !doing;
    $("#busy").textContent = doing ?? "";
  },
};
const server = exploreAnswers(page, said);

// Which side of a change is shown in the tokens and in the small pictures.
const sides = (() => {
  const box = $("#sides");
  let side = "after", changed = false;
  const buttons = ["before", "after", "difference"].map((name) => element("button", name, { type: "button", "aria-pressed": name === side }));
  for (const button of buttons) button.addEventListener("click", () => {
    side = button.textContent;
    for (const other of buttons) other.setAttribute("aria-pressed", other === button);
    reading.drawTokens();
    heads.show();
  });
  box.append(...buttons);
  return { shown: () => changed ? side : "before", offer: (now) => { changed = now; box.hidden = !now; } };
})();

// A saved page holds one head.
const pick = (layer, head) => { if (page.live) state.set({ layer, head }); };
const model = await server.ask("model", {});
if (!model) return;
state.limit(model);
const look = labelLook(model.labels);
const reading = exploreReading({ state, sides });
const heads = exploreHeads({ model, state, sides, look, onPick: pick });
const head = exploreHead({ look, onPick: pick });
const change = exploreChange({ model, state });
const patch = explorePatch({ model, state, ask: () => want("patch"), stop: () => state.set({ patch: null }) });
const move = exploreMove({ model, state, reading, onPick: pick });

// ---------------------------------------------------------------- asking and drawing

// What was not drawn yet cannot be saved.
function savable(now, ...figures) {
  for (const figure of figures) for (const button of $$(`[data-figure="${figure}"], ${figure} .save button`)) button.disabled = !now;
}

const draw = {
  read() {
    reading.show(answers.read);
    heads.show(answers.read);
    savable(Boolean(answers.read), "#map");
  },
  head() {
    if (!answers.head) return;
    head.show(answers.head, answers.read);
    savable(true, "#attention", "#usage");
  },
  feeds: () => answers.feeds && head.showFeeds(answers.feeds),
  move: () => move.show(answers.move),
  fit: () => {},
  patch: () => patch.show(answers.patch),
  code: () => { $("#python").textContent = answers.code?.code ?? ""; },
};

// Of which state the answer to a move is: a change takes nothing from it, and another prompt does.
const moveOf = ({ prompt, move }) => JSON.stringify([prompt, move]);

const steps = { patch: patch.progress, fit: ({ done, total }) => { $("#busy").textContent = `Fitting position codes and probes: ${done} of ${total} sequences read.`; } };

async function want(name) {
  const asked = state.get(), answer = await (name in steps ? server.askInSteps(name, asked, steps[name]) : server.ask(name, asked));
  if (!answer) return false;
  answers[name] = { ...answer, of: asked };
  if (page.live) said.fine(name);
  draw[name]();
  return true;
}

// What a move needs is fitted first, by steps; meanwhile the move may become another one.
const siteOf = ({ prompt, move }) => JSON.stringify([prompt, move?.layer, move?.site]);
let fitting = false;
async function wantMove() {
  if (fitting) return;
  fitting = true;
  let asked, fitted;
  try {
    do {
      asked = siteOf(state.get());
      fitted = !page.live || await want("fit");
    } while (fitted && asked !== siteOf(state.get()));
  } finally {
    fitting = false;
  }
  if (fitted && state.get().move) await want("move");
}

// What feeds a head takes longer: its view does not wait for it.
async function wantHead() {
  if (await want("head")) want("feeds");
}

async function readAll() {
  if (!await want("read")) return;
  if (state.get().layer === null) state.set(heads.first(), true);
  else wantHead();
  if (state.get().move && moveOf(answers.move?.of ?? {}) !== moveOf(state.get())) wantMove();
  want("code");
  if (state.get().patch && !answers.patch) want("patch");
  if (page.live) showTools();
}

function showTools() {
  change.show();
  move.showMoves();
}

// Asks for what a new state changes, and no more.
function refresh(before, now) {
  const differs = (...names) => names.some((name) => JSON.stringify(before[name]) !== JSON.stringify(now[name]));
  const lends = now.change?.head_changes?.some(({ to }) => to === "other_prompt");
  if (differs("prompt")) $("#prompt").value = now.prompt;
  if (differs("prompt", "move")) server.stop("move");
  if (differs("prompt") || !now.move) {
    draw.move(answers.move = null);
    for (const name of ["fit", "move"]) said.fine(name);
  }
  if (differs("prompt", "other_prompt", "patch")) {
    server.stop("patch");
    draw.patch(answers.patch = null);
    said.fine("patch");
  }
  if (page.live) showTools();
  heads.mark(now.layer, now.head);
  if (differs("prompt", "change") || (lends && differs("other_prompt"))) return readAll();
  if (now.patch && differs("patch", "other_prompt")) want("patch");
  if (differs("layer", "head")) now.layer === null ? state.set(heads.first(), true) : wantHead();
  if (now.move && differs("move")) wantMove();
  if (differs("layer", "head", "move", "other_prompt", "patch")) want("code");
}

// ---------------------------------------------------------------- what a person types and keeps

// Another prompt has other tokens: what was moved and patched in the old one does not follow.
function setUpAsking() {
  const read = (prompt) => {
    said.fine("read");
    if (prompt === "") return said.sorry("read", "The prompt is empty: type some text.");
    if (prompt === state.get().prompt) return readAll();
    state.set({ prompt, move: null, patch: null });
  };
  $("#examples").append(...model.prompts.map((prompt, i) => element("option", cut(prompt, 60), { value: i })));
  $("#examples").addEventListener("change", ({ target }) => {
    if (target.value === "") return;
    $("#prompt").value = model.prompts[Number(target.value)];
    read($("#prompt").value);
    target.value = "";
  });
  $("#ask").addEventListener("submit", (event) => {
    event.preventDefault();
    read($("#prompt").value.toWellFormed());
  });
  $("#prompt").addEventListener("keydown", (event) => {
    // While a word is composed, as in Japanese, Enter ends the word.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("#ask").requestSubmit();
  });
}

function setUpKeeping() {
  $("#copy-address").addEventListener("click", async ({ target }) => {
    // Where the clipboard is closed, only what stands in the page can be copied.
    const address = element("code", location.href, { class: "hidden" });
    target.after(address);
    await copied(address);
    address.remove();
    target.textContent = "Copied";
  });
  $("#save-page").addEventListener("click", async () => {
    const blob = await server.blob("save", state.get());
    if (blob) saveBlob(`explore-${model.name}.html`, blob);
  });
}

// Its hash would take the place of the state.
$(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  ($("#tokens [tabindex='0']") ?? $("#tokens")).focus();
});
for (const button of $$(".picture-of")) button.addEventListener("click", () => button.dataset.figure === "#map" ? heads.savePicture() : head.savePicture());
savable(false, "#map", "#attention", "#usage");
heads.setUp();
head.setUp();
move.setUpResults();
patch.setUpResults();
reading.setUp((t) => { head.lookAt(t); move.pick(t); }, (from, to) => move.drag(from, to));
setUpTheme(() => {
  draw.read();
  head.redraw();
  move.redraw();
  patch.redraw();
});
$("#origin").textContent = page.live ? ` · ${model.kept}` : " · a saved page";
if (page.live) {
  setUpAsking();
  setUpKeeping();
  change.setUp();
  move.setUp(wantMove);
  patch.setUp();
}
const found = page.live ? state.inAddress() ?? { prompt: model.prompts[0] ?? "" } : page.state;
state.start(found);
if (page.live) $("#prompt").value = found.prompt;
if (found.prompt) await readAll();
head.startDrawing();
}, { idle: false });
