// Picking, searching, walking: what the keys and the panels do.
let mode = "backend", hits = [], hit = -1;

const views = builds.map(build => new GraphView(build, make("div", null, byId("graphs"), "graph"), (view, node) => select(view.build, node, false)));
const viewOf = build => views[builds.indexOf(build)];

// --- picking ---
function select(build, node, reveal) {
  for (const view of views) Object.assign(view, { main: -1, picked: new Set() });
  if (node >= 0) {
    viewOf(build).main = node;
    if (reveal) viewOf(build).reveal(node);
    const there = builds.length > 1 ? other(build).byKey.get(build.key[node]) : undefined;
    if (there !== undefined) { viewOf(other(build)).main = there; viewOf(other(build)).reveal(there); }
  }
  describeAll(build, node >= 0 ? [node] : []);
  views.forEach(view => view.draw());
}
function selectAll(build, nodes) {
  const view = viewOf(build);
  for (const each of views) Object.assign(each, { main: -1, picked: new Set() });
  view.picked = new Set(nodes);
  describeAll(build, nodes);
  if (nodes.length) view.reveal(nodes[0]);
  views.forEach(each => each.draw());
}
function letGo() {
  byId("search").value = "";
  byId("count").textContent = "";
  byId("found").replaceChildren();
  hits = [];
  select(builds[0], -1, false);
}

// --- colours ---
function colourBy(name) {
  mode = name;
  byId("modes").querySelectorAll("button").forEach(button => button.setAttribute("aria-checked", button.dataset.mode === mode));
  views.forEach(view => view.colour(mode));
  const legend = byId("legend");
  legend.replaceChildren();
  if (mode === "backend") {
    for (const [backend, colour] of new Map(builds.flatMap(build => Object.entries(build.colours)))) {
      const key = make("span", null, legend);
      make("i", null, key).style.background = colour;
      make("span", backend + " " + builds.map(build => build.nodes.filter((_, i) => build.text(i, BACKEND) === backend).length).join(" and "), key);
    }
    return;
  }
  const most = values => values.flat().reduce((a, b) => Math.max(a, b || 0), 0);
  const ends = {
    time: () => ["0", duration(most(builds.map(build => build.time)))],
    memory: () => ["0", amount(most(builds.map(build => build.nodes.map(node => node[BYTES])))) + "B"],
    work: () => ["0", amount(most(builds.map(build => build.nodes.map(node => node[FLOPS])))) + " FLOPs"],
    error: () => ["1e-7", "1"],
    change: () => ["4 times as quick", "4 times as slow, or elsewhere"],
  }[mode]();
  make("span", ends[0], legend);
  make("span", null, legend, mode === "change" ? "scale two" : "scale");
  make("span", ends[1], legend);
}
const modes = Object.keys(MODES).filter(name => name === "backend" || name === "work" || builds.some(build => build.has[name]));
for (const [i, name] of modes.entries()) {
  const button = make("button", MODES[name], byId("modes"));
  button.dataset.mode = name;
  button.title = "key " + (i + 1);
  button.setAttribute("role", "radio");
  button.addEventListener("click", () => colourBy(name));
}

// --- panels ---
const tabs = ["Graph", ...Object.keys(PANELS).filter(name => builds.some(build => PANELS[name].of(build)))];
function show(name) {
  byId("tabs").querySelectorAll("button").forEach(button => button.setAttribute("aria-selected", button.textContent === name));
  byId("graph-panel").hidden = name !== "Graph";
  const panel = byId("panel");
  panel.hidden = name === "Graph";
  panel.replaceChildren();
  if (name !== "Graph") builds.filter(build => PANELS[name].of(build)).forEach(build => PANELS[name].show(build, panel));
}
for (const name of tabs) {
  const button = make("button", name, byId("tabs"));
  button.setAttribute("role", "tab");
  button.addEventListener("click", () => show(name));
}

// --- searching ---
const lower = builds.map(build => build.texts.map(text => text.toLowerCase()));
const lowerModelOps = builds.map(build => build.model_ops.map(text => text.toLowerCase()));
function search(wanted) {
  const list = byId("found");
  list.replaceChildren();
  hits = builds.flatMap((build, b) => {
    const fits = lower[b].map(text => text.includes(wanted)), reasons = build.reasons.map(reason => fits[reason[1]]);
    return build.nodes.flatMap((node, i) => [NAME, OP, BACKEND, PATTERN, REGION].some(field => fits[node[field]]) || lowerModelOps[b][i].includes(wanted) || node[REASONS].some(reason => reasons[reason]) ? [[build, i]] : []);
  });
  hit = -1;
  byId("count").textContent = hits.length === 1 ? "1 op" : hits.length + " ops";
  for (const [build, node] of hits.slice(0, 100)) {
    link(build, node, make("li", null, list), build.text(node, NAME) + " · " + build.text(node, OP));
  }
  if (hits.length > 100) make("li", "... and " + (hits.length - 100) + " more", list);
  for (const view of views) {
    view.main = -1;
    view.picked = new Set(hits.flatMap(([build, node]) => build === view.build ? [node] : []));
    const first = hits.find(([build]) => build === view.build);
    if (first) view.reveal(first[1]); else view.draw();
  }
}
byId("search").addEventListener("input", event => {
  const wanted = event.target.value.trim().toLowerCase();
  if (wanted) search(wanted); else letGo();
});
function nextHit(by) {
  if (!hits.length) return;
  hit = (hit + by + hits.length) % hits.length;
  const [build, node] = hits[hit];
  select(build, node, true);
  byId("count").textContent = hit + 1 + " of " + hits.length;
}

// --- keys ---
function walk(key) {
  const view = views.find(each => each.main >= 0) || views[0], { build, main } = view;
  if (main < 0) return build.nodes.length && select(build, 0, true);
  const beside = (list, by) => { const row = list.length ? list : [main]; return row[(row.indexOf(main) + by + row.length) % row.length]; };
  const siblings = (build.nodes[main][INPUTS].length ? build.readers[build.nodes[main][INPUTS][0]] : []);
  const to = { ArrowDown: build.readers[main][0], ArrowUp: build.nodes[main][INPUTS][0], ArrowRight: beside(siblings, 1), ArrowLeft: beside(siblings, -1) }[key];
  if (to !== undefined) select(build, to, true);
}
document.addEventListener("keydown", event => {
  if (event.key === "Escape") { letGo(); document.activeElement.blur(); return; }
  if (event.target.tagName === "INPUT") { if (event.key === "Enter") nextHit(event.shiftKey ? -1 : 1); return; }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const keys = {
    "/": () => { byId("search").focus(); byId("search").select(); },
    n: () => nextHit(1), N: () => nextHit(-1),
    "+": () => views.forEach(view => view.zoom(1.25)), "=": () => views.forEach(view => view.zoom(1.25)),
    "-": () => views.forEach(view => view.zoom(0.8)), 0: () => views.forEach(view => view.fit()),
    ...Object.fromEntries(modes.map((name, i) => [i + 1, () => colourBy(name)])),
  };
  const act = keys[event.key];
  if (act) { act(); event.preventDefault(); }
  else if (event.key.startsWith("Arrow") && !event.target.closest("aside") && !byId("graph-panel").hidden) { walk(event.key); event.preventDefault(); }
});

byId("title").textContent = builds.map(build => build.title).join(" and ");
make("small", " target " + [...new Set(builds.map(build => build.target))].join(", "), byId("title"));
byId("summary").textContent = builds.map(build => build.summary).join("\n");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colourBy(mode));
show("Graph");
colourBy(builds.some(build => build.has.error) ? "error" : "backend");
select(builds[0], -1, false);
