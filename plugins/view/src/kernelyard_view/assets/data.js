// What the page was made of: builds, and how their numbers are written.
const builds = JSON.parse(document.getElementById("data").textContent);
const [NAME, OP, TYPE, BACKEND, PATTERN, REGION, ENTRY, FLOPS, BYTES, INPUTS, REASONS] = Array(11).keys();
const byId = id => document.getElementById(id);

function make(tag, content, parent, kind) {
  const made = document.createElement(tag);
  if (content !== undefined && content !== null) made.textContent = content;
  if (kind) made.className = kind;
  if (parent) parent.append(made);
  return made;
}
function amount(number) {
  for (const unit of ["", "k", "M", "G", "T"]) {
    if (number < 1000) return +number.toPrecision(3) + unit;
    number /= 1000;
  }
  return +number.toPrecision(3) + "P";
}
function duration(seconds) {
  if (seconds >= 1) return +seconds.toPrecision(3) + " s";
  return seconds >= 1e-3 ? +(seconds * 1e3).toPrecision(3) + " ms" : +(seconds * 1e6).toPrecision(3) + " µs";
}
const percent = share => (100 * share).toFixed(share < 0.1 ? 1 : 0) + " %";
const cssColour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function rgb(colour) {
  return [1, 3, 5].map(i => parseInt(colour.slice(i, i + 2), 16));
}
function mix(from, to, share) {
  const [a, b] = [rgb(from), rgb(to)];
  return "#" + a.map((part, i) => Math.round(part + (b[i] - part) * share).toString(16).padStart(2, "0")).join("");
}
// Black or white, whichever is read more easily on a colour.
function inkOn(colour) {
  const parts = rgb(colour).map(part => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const light = 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  return light > 0.18 ? "#10151c" : "#ffffff";
}

// A node's facts by name; lookups between the nodes of a build.
function prepare(build) {
  build.text = (node, field) => build.texts[build.nodes[node][field]];
  build.readers = build.nodes.map(() => []);
  build.nodes.forEach((node, i) => node[INPUTS].forEach(source => build.readers[source].push(i)));
  build.byKey = new Map();
  build.key = build.nodes.map((node, i) => build.text(i, NAME) + "\n" + build.text(i, OP));
  const seen = new Map();
  build.key = build.key.map(key => {
    const count = seen.get(key) || 0;
    seen.set(key, count + 1);
    return key + "\n" + count;
  });
  build.key.forEach((key, i) => build.byKey.set(key, i));
  build.time = build.shares.map(share => share && share[0]);
  build.has = {
    time: build.steps.length > 0,
    error: build.errors.some(error => error !== null),
    memory: build.nodes.length > 0,
    change: builds.length > 1,
  };
  return build;
}
builds.forEach(prepare);
const other = build => builds[1 - builds.indexOf(build)];

// How long an op took, with those that it was timed together with.
const timeText = (build, node) => {
  const share = build.shares[node];
  return share && share[0] ? duration(share[0]) + (share[1] > 1 ? " (" + share[1] + " ops)" : "") : "";
};

// What changed of a node between two builds: nothing, its place, or that it is not there.
function changeOf(build, node) {
  const there = other(build).byKey.get(build.key[node]);
  if (there === undefined) return "only here";
  const same = [BACKEND, PATTERN, TYPE].every(field => build.text(node, field) === other(build).text(there, field));
  return same ? "" : "differs";
}
