// What the page shows, kept in its address; and how it asks the server for what follows from it.
const exploreState = (changed) => {
const { unescaped } = common;
const EMPTY = { prompt: "", layer: null, head: null, change: null, other_prompt: null, move: null, patch: null };
let state = { ...EMPTY }, model = null;

// What each part has to be, so that it can be drawn. An address may hold anything.
const isText = (value) => typeof value === "string", isNumber = (value) => Number.isInteger(value) && value >= 0, isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const all = (values, is) => values === null || values === undefined || (Array.isArray(values) && values.every(is));
const SHAPES = {
  prompt: isText, layer: isNumber, head: isNumber, other_prompt: isText,
  change: (value) => isObject(value) && all(value.layers, isNumber) && all(value.heads, Array.isArray) && all(value.head_changes, isObject) && isText(value.positions ?? ""),
  move: (value) => isText(value?.code) && isNumber(value.layer) && isText(value.site) && isObject(value.moves) && Object.entries(value.moves).every(([t, to]) => /^\d+$/.test(t) && isNumber(to)),
  patch: (value) => isText(value?.at),
};

// What is no state of ours is left out, and the server checks the rest.
function inAddress() {
  try {
    const found = JSON.parse(unescaped(location.hash.slice(1)));
    if (!isText(found.prompt)) return null;
    const known = Object.fromEntries(Object.entries(EMPTY).map(([name, none]) => [name, SHAPES[name](found[name]) ? found[name] : none]));
    return known.layer !== null && known.head !== null && (!model || (model.attending.includes(known.layer) && known.head < model.heads)) ? known : { ...known, layer: null, head: null };
  } catch {
    return null;
  }
}

function address() {
  const told = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== null));
  return `#${encodeURIComponent(JSON.stringify(told))}`;
}

// `quietly` leaves no step to go back to.
function set(part, quietly = false) {
  const before = state;
  state = { ...state, ...part };
  history[quietly ? "replaceState" : "pushState"](null, "", address());
  changed(before, state);
}

addEventListener("popstate", () => {
  const found = inAddress(), before = state;
  if (!found) return;
  state = found;
  changed(before, state);
});

return { get: () => state, set, inAddress, limit: (found) => { model = found; }, start: (found) => { state = { ...EMPTY, ...found }; } };
};

// Asks the server, or looks up what a saved page was answered. A newer question ends an older one of its name.
const exploreAnswers = (page, said) => {
const token = new URLSearchParams(location.search).get("token") ?? "";
const own = [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const running = new Map();
const SUPERSEDED = 409;
const GONE = "The server does not answer: start nope-interp explore again.";

function stop(name) {
  running.get(name)?.abort();
}

// The response, or null where a newer question has ended this one or a sentence says why there is none.
async function respond(name, state, use) {
  for (const other of name === "read" ? [...running.keys()] : [name]) stop(other);
  const control = new AbortController();
  running.set(name, control);
  said.busy(name, true);
  try {
    const response = await fetch(`api/${name}`, { method: "POST", signal: control.signal, body: JSON.stringify(state),
      headers: { "Content-Type": "application/json", "X-Token": token, "X-Page": own } });
    if (response.status === SUPERSEDED) return null;
    if (!response.ok) {
      said.sorry(name, (await response.json()).sentence);
      return null;
    }
    return await use(response);
  } catch (error) {
    if (error.name !== "AbortError") said.sorry(name, GONE);
    return null;
  } finally {
    if (running.get(name) === control) {
      running.delete(name);
      said.busy(name, false);
    }
  }
}

function ask(name, state) {
  return page.live ? respond(name, state, (response) => response.json()) : Promise.resolve(page.answers[name] ?? null);
}

// Lines of JSON: `onProgress` gets all but the last, which is the answer.
function askInSteps(name, state, onProgress) {
  if (!page.live) return ask(name, state);
  return respond(name, state, async (response) => {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", last = null;
    for (;;) {
      const { value, done } = await reader.read();
      const lines = (rest + (value ?? "")).split("\n");
      rest = done ? "" : lines.pop();
      for (const line of lines) if (line.trim()) {
        last = JSON.parse(line);
        if ("done" in last) onProgress(last);
      }
      if (done) break;
    }
    if (last && "sentence" in last) said.sorry(name, last.sentence);
    return last && !("sentence" in last || "done" in last) ? last : null;
  });
}

return { ask, askInSteps, stop, blob: (name, state) => respond(name, state, (response) => response.blob()) };
};

const nameOf = (layer, head) => `L${layer}H${head}`;
// What may be done to a head, as a sentence about it goes on.
const HEAD_CHANGES = { ablated: "outputs zero", uniform: "attends uniformly", previous_token: "attends to the previous token", other_prompt: "attends as in the other prompt" };

// Arrays as the server packs them: their numbers in one row.
function unpacked({ shape, dtype, base64 }) {
  const bytes = common.bytesOf(base64);
  const values = dtype === "uint8" ? Float32Array.from(bytes, (byte) => byte / 255) : new Float32Array(bytes.buffer);
  return { shape, values };
}

// The square of the numbers of one head, as lists by query.
function square({ shape, values }, head = 0) {
  const n = shape[shape.length - 1];
  return Array.from({ length: n }, (_, q) => [...values.subarray(n * (head * n + q), n * (head * n + q + 1))]);
}

const lessen = (after, before) => after.map((row, q) => row.map((weight, k) => weight - before[q][k]));
function signed(value) {
  const figure = common.asFigure(value);
  return value > 0 && figure !== "0" ? `+${figure}` : figure;
}
const asPercent = (share) => share >= 0.0995 ? common.wholePercent(share) : share >= 0.001 ? `${(100 * share).toFixed(1)}%` : share > 0 ? "<0.1%" : "0%";
