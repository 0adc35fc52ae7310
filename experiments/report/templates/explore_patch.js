// What patching from the prompt into another one recovers, by layer and position or head.
const explorePatch = ({ model, state, ask, stop }) => {
const { $, element, visible, shortened, asFigure, whenSeen, plotLayout, drawPlot, plotText, resolve, saveCsv, setUpPictures } = common;
const section = $("#patched");
let map = null, drawable = false;

function setUp() {
  $("#patch-start").addEventListener("click", () => {
    const { other_prompt, patch } = state.get(), other = $("#patch textarea.other").value || null, at = $("#patch-at").value;
    // One that was stopped starts again.
    if (other === other_prompt && at === patch?.at) ask();
    else state.set({ other_prompt: other, patch: { at } });
  });
  $("#pairs").append(...model.pairs.map(([, corrupted], i) => element("option", corrupted, { value: i })));
  $("#pairs-box").hidden = !model.pairs.length;
  // Heads are patched in every layer, or not at all.
  for (const option of $("#patch-at").options) option.disabled = option.value !== "resid_pre" && model.attending.length < model.layers;
  $("#pairs").addEventListener("change", ({ target }) => {
    const [prompt, other_prompt] = model.pairs[Number(target.value)] ?? [];
    if (prompt !== undefined) state.set({ prompt, other_prompt, move: null, patch: { at: $("#patch-at").value } });
    target.value = "";
  });
  $("#patch-stop").addEventListener("click", stop);
}

function setUpResults() {
  whenSeen($("#recovered"), "plotly", () => { drawable = true; draw(); });
  setUpPictures($("#recovered"), () => "patching");
  $("#recovered .csv").addEventListener("click", () => saveCsv("patching", ["layer", map.columns, "recovered"], map.recovered.flatMap((row, layer) => row.map((share, column) => [layer, column, share]))));
}

function busy(now) {
  if (!$("#patch-stop")) return;
  for (const id of ["#patch-stop", "#patch-progress"]) $(id).hidden = !now;
  $("#patch-start").hidden = now;
  if (!now) $("#patch-count").textContent = "";
}

function progress({ done, total }) {
  $("#patch-progress").max = Math.max(1, total);
  $("#patch-progress").value = done;
  $("#patch-count").textContent = `${done} of ${total} patches`;
}

function show(found = map) {
  map = found;
  section.hidden = !map;
  const { patch } = state.get();
  if ($("#patch-at") && patch) $("#patch-at").value = patch.at;
  if (!map) return;
  $(".said", section).textContent = `Logit of “${visible(map.answer)}” less “${visible(map.other)}”: ${asFigure(map.clean)} in the clean run, ${asFigure(map.corrupted)} in the corrupted one.`;
  draw();
}

function draw() {
  if (!map || !drawable) return;
  const byPosition = map.columns === "position", z = map.recovered, columns = z[0].map((_, i) => i);
  const layout = plotLayout(byPosition ? "position, with the clean prompt's token" : "head"), top = Math.max(1, ...z.flat().map(Math.abs)), step = Math.ceil(columns.length / 24);
  const names = columns.map((i) => byPosition ? `${i} ${shortened(map.clean_tokens[i] ?? "")}` : `H${i}`), kept = columns.filter((i) => i % step === 0);
  Object.assign(layout.xaxis, { tickvals: kept, ticktext: kept.map((i) => plotText(names[i])), showgrid: false, ...(byPosition ? { tickangle: -60 } : {}) });
  Object.assign(layout.yaxis, { autorange: "reversed", title: { text: "layer" }, dtick: Math.ceil(z.length / 12), showgrid: false });
  drawPlot($("#recovered .plot"), [{ type: "heatmap", z, text: z.map(() => names.map(plotText)), zmin: -top, zmax: top, colorbar: { thickness: 10, outlinewidth: 0 },
    colorscale: [[0, resolve("--random-init")], [0.5, resolve("--panel")], [1, resolve("--trained")]], hovertemplate: "layer %{y}, %{text}<br>recovered %{z:.3~g}<extra></extra>" }], layout);
}

return { setUp, setUpResults, busy, progress, show, redraw: draw };
};
