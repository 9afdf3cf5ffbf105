// What is known of some nodes, beside the graph.
const MAX_DESCRIBED = 12;

function link(build, node, parent, label) {
  const button = make("button", label || build.text(node, NAME) || build.text(node, OP), parent, "link");
  button.addEventListener("click", () => select(build, node, true));
  return button;
}

function describe(build, node, into) {
  const facts = build.nodes[node], list = make("dl", null, into);
  const rows = [
    ["node", build.text(node, NAME)], ["op", build.text(node, OP)], ["in the model", build.model_ops[node]], ["type", build.text(node, TYPE)],
    ["backend", build.text(node, BACKEND)], ["pattern", build.text(node, PATTERN)], ["region", build.text(node, REGION)],
    ["function", new Set(build.nodes.map(each => each[ENTRY])).size > 1 ? build.text(node, ENTRY) : ""],
    ["FLOPs", amount(facts[FLOPS])], ["bytes", amount(facts[BYTES])], ...stepFacts(build, node), ...changeFacts(build, node),
  ];
  const error = build.errors[node];
  if (error !== null && error !== undefined) rows.push(["error", error >= 1e308 ? "not finite" : error.toPrecision(3)]);
  for (const [name, value] of rows) if (value !== "") { make("dt", name, list); make("dd", value, list); }
  for (const [name, nodes] of [["reads", facts[INPUTS]], ["read by", build.readers[node]]]) {
    if (!nodes.length) continue;
    make("dt", name, list);
    const cell = make("dd", null, list);
    nodes.slice(0, 20).forEach(each => link(build, each, cell));
    if (nodes.length > 20) make("span", "and " + (nodes.length - 20) + " more", cell);
  }
  for (const number of facts[REASONS]) {
    const [who, code, tried, message] = build.reasons[number].map(each => build.texts[each]);
    const reason = make("div", null, into, "reason");
    make("b", who + ": " + code, reason);
    make("div", (tried && tried + ": ") + message, reason);
  }
}

function stepFacts(build, node) {
  const step = build.steps[build.step_of[node]];
  if (!step) return [];
  const shared = build.shares[node][1] === step.nodes.length; // else the step's speed is not that of the op
  const share = build.call_seconds ? ", " + percent(step.seconds / build.call_seconds) + " of a call" : "";
  const rows = [["time", timeText(build, node)], ["step", step.symbol + ": " + duration(step.seconds) + share]];
  const rate = step.flops && step.seconds ? step.flops / step.seconds / 1e9 : 0, { gflops } = build.roof;
  if (rate && shared) rows.push(["speed", +rate.toPrecision(3) + " GFLOP/s" + (gflops ? ", " + percent(rate / gflops) + " of the roof" : "")]);
  return rows;
}

function changeFacts(build, node) {
  if (builds.length < 2) return [];
  const there = other(build).byKey.get(build.key[node]);
  if (there === undefined) return [["other build", "is not there"]];
  const place = [BACKEND, PATTERN].map(field => other(build).text(there, field)).filter(Boolean).join(", ");
  const time = timeText(other(build), there);
  return [["other build", place + (time && ", " + time)]];
}

function describeAll(build, nodes) {
  const into = byId("details");
  into.replaceChildren();
  if (!nodes.length) return describeBuilds(into);
  make("h2", nodes.length === 1 ? "Op" : nodes.length + " ops", into);
  nodes.slice(0, MAX_DESCRIBED).forEach(node => describe(build, node, into));
  if (nodes.length > MAX_DESCRIBED) make("p", "... and " + (nodes.length - MAX_DESCRIBED) + " more", into);
}

// Where nothing is picked: reasons of what no library runs, those that concern most work first.
function describeBuilds(into) {
  make("p", "Click an op for its facts and the reasons of its place.", into, "soft");
  for (const build of builds) {
    const rows = new Map();
    build.nodes.forEach((node, i) => {
      if (build.text(i, PATTERN)) return;
      for (const number of node[REASONS]) {
        const [who, code] = build.reasons[number].map(each => build.texts[each]);
        const key = [who, code, build.text(i, OP)].join("\n");
        if (!rows.has(key)) rows.set(key, []);
        rows.get(key).push(i);
      }
    });
    if (!rows.size) continue;
    make("h2", (builds.length > 1 ? build.title + ": " : "") + "what no library runs, and why", into);
    const table = make("table", null, into), head = make("tr", null, table);
    for (const name of ["backend", "code", "op", "times"]) make("th", name, head);
    const work = nodes => nodes.reduce((sum, node) => sum + build.nodes[node][FLOPS], 0);
    for (const [key, nodes] of [...rows].sort((a, b) => work(b[1]) - work(a[1]))) {
      const row = make("tr", null, table);
      key.split("\n").forEach(part => make("td", part, row));
      make("td", "×" + nodes.length, row);
      activate(row, () => selectAll(build, nodes));
    }
  }
}

// A row that can be clicked, or chosen by Enter.
function activate(row, act) {
  row.tabIndex = 0;
  row.addEventListener("click", act);
  row.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); } });
}
