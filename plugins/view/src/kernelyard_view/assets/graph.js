// The graph on a canvas: what lies in sight is drawn, and nothing else.
const MODES = {
  backend: "Backend", time: "Time", memory: "Memory", error: "Error", work: "FLOPs", change: "Change",
};
const BUCKET = 400; // units of height that lines are found by
const TEXT_FROM = 0.45, LINES_FROM = 0.04; // scales from which on they can be seen

// How much of the way from cold to hot a number is: a root, so that small ones differ from nothing.
const heat = (value, most) => value > 0 && most > 0 ? Math.sqrt(value / most) : 0;
// Errors differ by powers of ten: from 1e-7, which is rounding, to 1.
const errorHeat = error => error > 0 ? Math.min(1, Math.max(0, (Math.log10(error) + 7) / 7)) : 0;

function coloursOf(build, mode) {
  const cold = cssColour("--cold"), hot = cssColour("--hot"), less = cssColour("--less");
  const most = values => values.reduce((a, b) => Math.max(a, b || 0), 0);
  const scale = values => { const top = most(values); return values.map(value => value === null ? cold : mix(cold, hot, heat(value, top))); };
  if (mode === "time") return scale(build.time);
  if (mode === "memory") return scale(build.nodes.map(node => node[BYTES]));
  if (mode === "work") return scale(build.nodes.map(node => node[FLOPS]));
  if (mode === "error") return build.errors.map(error => mix(cold, hot, errorHeat(error)));
  if (mode === "change") return build.nodes.map((_, i) => {
    const what = changeOf(build, i), there = other(build).byKey.get(build.key[i]);
    if (what) return hot;
    const [mine, theirs] = [build.time[i], there === undefined ? null : other(build).time[there]];
    if (!mine || !theirs) return cold;
    const times = Math.log2(mine / theirs);
    return mix(cold, times > 0 ? hot : less, Math.min(1, Math.abs(times) / 2));
  });
  return build.nodes.map((_, i) => build.colours[build.text(i, BACKEND)]);
}

class GraphView {
  constructor(build, parent, choose) {
    Object.assign(this, { build, choose, graph: build.graph, at: { x: 0, y: 0, k: 1 }, picked: new Set(), main: -1, over: -1 });
    if (builds.length > 1) make("h3", build.title, parent);
    const stage = make("div", null, parent, "stage");
    this.map = make("canvas", null, stage, "map");
    this.canvas = make("canvas", null, stage, "big");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", "the graph of " + build.title + "; walk by the arrow keys");
    const zoom = make("div", null, stage, "zoom");
    for (const [sign, name, act] of [["−", "smaller", () => this.zoom(0.8)], ["+", "larger", () => this.zoom(1.25)], ["fit", "fit", () => this.fit()]]) {
      const button = make("button", sign, zoom);
      button.setAttribute("aria-label", name);
      button.addEventListener("click", act);
    }
    this.index();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(stage);
    this.stage = stage;
    this.resize();
    this.start();
  }

  // Boxes by height, and lines by the stripes of height that they cross.
  index() {
    const { y, h, edges } = this.graph;
    this.byHeight = y.map((_, i) => i).sort((a, b) => y[a] - y[b]);
    this.tallest = h.reduce((a, b) => Math.max(a, b), 0);
    this.stripes = [];
    edges.forEach((edge, number) => {
      const from = Math.floor(edge[3] / BUCKET), to = Math.floor(edge[edge.length - 1] / BUCKET);
      for (let stripe = from; stripe <= to; stripe++) (this.stripes[stripe] ||= []).push(number);
    });
    this.drawn = new Int32Array(edges.length);
    this.round = 0;
  }

  colour(mode) {
    this.colours = coloursOf(this.build, mode);
    this.inks = this.colours.map(inkOn);
    this.paints = { ink: cssColour("--ink"), soft: cssColour("--soft"), edge: cssColour("--edge"), pick: cssColour("--pick"), paper: cssColour("--paper"), end: cssColour("--end") };
    this.drawMap();
    this.draw();
  }

  resize() {
    const ratio = window.devicePixelRatio || 1, { clientWidth, clientHeight } = this.stage || this.canvas.parentElement;
    if (!clientWidth || !clientHeight) return;
    if (this.at) this.at.x += (clientWidth - 64 - this.width) / 2; // what is in the middle stays there: a second graph took half of the page
    this.width = clientWidth - 64;
    this.height = clientHeight;
    for (const [canvas, width] of [[this.canvas, this.width], [this.map, 64]]) {
      canvas.width = Math.max(1, width * ratio);
      canvas.height = clientHeight * ratio;
      canvas.style.width = width + "px";
      canvas.style.height = clientHeight + "px";
    }
    this.ratio = ratio;
    if (this.colours) { this.drawMap(); this.draw(); }
  }

  // --- where we look ---
  start() {
    const k = Math.min(1, Math.max(0.8, (this.width - 40) / this.graph.width));
    const first = this.graph.count ? this.graph.first : 0;
    this.at = { k, x: this.width / 2 - (this.graph.x[first] || 0) * k, y: 16 };
    this.keep();
  }
  fit() {
    const k = Math.min(1, (this.width - 40) / this.graph.width, (this.height - 40) / Math.max(1, this.graph.height));
    this.at = { k, x: (this.width - this.graph.width * k) / 2, y: 20 };
    this.draw();
  }
  // Some of the graph stays in sight.
  keep() {
    const { at, graph } = this;
    at.x = Math.min(this.width - 40, Math.max(40 - graph.width * at.k, at.x));
    at.y = Math.min(this.height - 40, Math.max(40 - graph.height * at.k, at.y));
  }
  zoom(by, x = this.width / 2, y = this.height / 2) {
    const k = Math.min(4, Math.max(Math.min(0.02, this.height / (this.graph.height + 1)), this.at.k * by)), scale = k / this.at.k;
    this.at = { k, x: x - (x - this.at.x) * scale, y: y - (y - this.at.y) * scale };
    this.keep();
    this.draw();
  }
  move(dx, dy) {
    this.at.x += dx;
    this.at.y += dy;
    this.keep();
    this.draw();
  }
  reveal(node) {
    const box = node + this.graph.first, k = Math.max(this.at.k, 0.6);
    this.at = { k, x: this.width / 2 - this.graph.x[box] * k, y: this.height / 2 - this.graph.y[box] * k };
    this.draw();
  }

  // --- drawing ---
  draw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.paint(); });
  }
  paint() {
    const context = this.canvas.getContext("2d"), { k, x, y } = this.at, { ratio } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(ratio * k, 0, 0, ratio * k, ratio * x, ratio * y);
    const sight = { left: -x / k, right: (this.width - x) / k, top: -y / k, bottom: (this.height - y) / k };
    if (k >= LINES_FROM) this.paintEdges(context, sight);
    this.paintBoxes(context, sight);
    this.paintMapSight(sight);
    if (!window.firstPaint) window.firstPaint = performance.now();
  }
  paintEdges(context, sight) {
    const { edges } = this.graph, picked = [];
    this.round++;
    context.beginPath();
    const last = Math.floor(sight.bottom / BUCKET);
    for (let stripe = Math.max(0, Math.floor(sight.top / BUCKET)); stripe <= last; stripe++) {
      for (const number of this.stripes[stripe] || []) {
        if (this.drawn[number] === this.round) continue;
        this.drawn[number] = this.round;
        const edge = edges[number], main = this.main + this.graph.first;
        if (this.main >= 0 && (edge[0] === main || edge[1] === main)) picked.push(edge);
        else this.trace(context, edge, sight);
      }
    }
    context.lineWidth = Math.max(1.2, 0.6 / this.at.k);
    context.strokeStyle = this.paints.edge;
    context.stroke();
    context.beginPath();
    for (const edge of picked) this.trace(context, edge, sight);
    context.lineWidth = Math.max(2.5, 1 / this.at.k);
    context.strokeStyle = this.paints.pick;
    context.stroke();
  }
  trace(context, edge, sight) {
    let x = edge[2], y = edge[3];
    const curved = this.at.k > 0.25;
    context.moveTo(x, y);
    for (let i = 4; i < edge.length; i += 2) {
      const toX = edge[i], toY = edge[i + 1];
      if (toY < sight.top || y > sight.bottom) context.moveTo(toX, toY);
      else if (x === toX || !curved) context.lineTo(toX, toY);
      else context.bezierCurveTo(x, (y + toY) / 2, toX, (y + toY) / 2, toX, toY);
      x = toX;
      y = toY;
    }
  }
  paintBoxes(context, sight) {
    const { x, y, w, h, first, count } = this.graph, texts = this.at.k >= TEXT_FROM;
    let low = 0, high = this.byHeight.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (y[this.byHeight[middle]] < sight.top - this.tallest) low = middle + 1; else high = middle;
    }
    context.textAlign = "center";
    for (; low < this.byHeight.length; low++) {
      const box = this.byHeight[low], node = box - first;
      if (y[box] > sight.bottom) break;
      if (x[box] + w[box] / 2 < sight.left || x[box] - w[box] / 2 > sight.right) continue;
      this.paintBox(context, box, node >= 0 && node < count ? node : -1, texts);
    }
  }
  paintBox(context, box, node, texts) {
    const { x, y, w, h, labels } = this.graph, left = x[box] - w[box] / 2, { build, paints } = this;
    context.globalAlpha = this.picked.size && !this.picked.has(node) && node !== this.main ? 0.3 : 1;
    context.fillStyle = node < 0 ? paints.end : this.colours[node];
    context.beginPath();
    if (texts) context.roundRect(left, y[box], w[box], h[box], node < 0 ? 11 : 5);
    else context.rect(left, y[box], w[box], h[box]);
    context.fill();
    if (node < 0 || node === this.main || node === this.over) {
      context.strokeStyle = node < 0 ? paints.soft : paints.pick;
      context.lineWidth = node < 0 ? 1 : Math.max(3, 1.5 / this.at.k);
      context.stroke();
    }
    if (texts) {
      context.fillStyle = node < 0 ? paints.ink : this.inks[node];
      if (node >= 0) {
        context.font = "12px ui-monospace, monospace";
        context.fillText(build.text(node, OP), x[box], y[box] + 15);
      }
      context.font = "10px ui-monospace, monospace";
      context.fillText(labels[box], x[box], y[box] + (node < 0 ? 15 : 29));
    }
    context.globalAlpha = 1;
  }

  // --- the whole graph, small ---
  drawMap() {
    const { x, y, w, h, first, count, width, height } = this.graph, { ratio } = this;
    this.small = document.createElement("canvas");
    this.small.width = this.map.width;
    this.small.height = this.map.height;
    const context = this.small.getContext("2d");
    this.mapScale = { x: Math.min(56 / Math.max(1, width), 0.3), y: Math.min((this.height - 8) / Math.max(1, height), 0.3) };
    const margin = (64 - width * this.mapScale.x) / 2;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (let node = 0; node < count; node++) {
      const box = node + first, wide = Math.max(3, w[box] * this.mapScale.x);
      context.fillStyle = this.colours[node];
      context.fillRect(margin + x[box] * this.mapScale.x - wide / 2, 4 + y[box] * this.mapScale.y, wide, Math.max(1, h[box] * this.mapScale.y));
    }
  }
  paintMapSight(sight) {
    const context = this.map.getContext("2d"), { ratio } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.map.width, this.map.height);
    context.drawImage(this.small, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = this.paints.pick;
    for (const node of [...this.picked, this.main]) {
      if (node >= 0) context.fillRect(0, 3 + this.graph.y[node + this.graph.first] * this.mapScale.y, 4, 3);
    }
    context.strokeStyle = this.paints.pick;
    context.lineWidth = 1.5;
    const top = 4 + Math.max(0, sight.top) * this.mapScale.y, bottom = 4 + Math.min(this.graph.height, sight.bottom) * this.mapScale.y;
    context.strokeRect(1.5, top, 61, Math.max(4, bottom - top));
  }

  // --- pointer ---
  nodeAt(event) {
    const { x, y, w, h, first, count } = this.graph;
    const atX = (event.offsetX - this.at.x) / this.at.k, atY = (event.offsetY - this.at.y) / this.at.k;
    for (let node = 0; node < count; node++) {
      const box = node + first;
      if (Math.abs(atX - x[box]) <= w[box] / 2 && atY >= y[box] && atY <= y[box] + h[box]) return node;
    }
    return -1;
  }
  listen() {
    const { canvas, map } = this;
    let from = null, moved = false;
    canvas.addEventListener("pointerdown", event => { from = event; moved = false; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", event => {
      if (!from) {
        const node = this.nodeAt(event);
        if (node !== this.over) { this.over = node; canvas.title = node < 0 ? "" : this.build.text(node, NAME); this.draw(); }
        return;
      }
      if (moved || Math.hypot(event.clientX - from.clientX, event.clientY - from.clientY) > 3) {
        moved = true;
        this.move(event.clientX - (this.last || from).clientX, event.clientY - (this.last || from).clientY);
        this.last = event;
      }
    });
    canvas.addEventListener("pointerup", event => {
      if (from && !moved) this.choose(this, this.nodeAt(event));
      from = this.last = null;
    });
    canvas.addEventListener("wheel", event => {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) this.zoom(event.deltaY < 0 ? 1.12 : 1 / 1.12, event.offsetX, event.offsetY);
      else this.move(-event.deltaX, -event.deltaY);
    }, { passive: false });
    const jump = event => { this.at.y = this.height / 2 - (event.offsetY - 4) / this.mapScale.y * this.at.k; this.keep(); this.draw(); };
    map.addEventListener("pointerdown", event => { map.setPointerCapture(event.pointerId); jump(event); });
    map.addEventListener("pointermove", event => { if (event.buttons) jump(event); });
  }
}
