// The panels beside the graph: steps, memory, passes, and the differences of two builds.
const MAX_ROWS = 400;

function tableOf(parent, names, numeric) {
  const table = make("table", null, parent), head = make("tr", null, table);
  names.forEach((name, i) => make("th", name, head, numeric.has(i) ? "n" : ""));
  return cells => {
    const row = make("tr", null, table);
    cells.forEach((cell, i) => {
      const made = make("td", typeof cell === "object" ? null : cell, row, numeric.has(i) ? "n" : "");
      if (typeof cell === "object") made.append(cell);
    });
    return row;
  };
}
function bar(share) {
  const fill = make("span", null, null, "fill");
  fill.style.width = Math.round(120 * share) + "px";
  return fill;
}
function heading(build, text, into) {
  make("h2", builds.length > 1 ? build.title + ": " + text : text, into);
}

const PANELS = {
  Steps: {
    of: build => build.steps.length,
    show(build, into) {
      const total = build.call_seconds || build.steps.reduce((sum, step) => sum + step.seconds, 0);
      const { gflops, gbytes } = build.roof;
      const roof = gflops ? "; the machine's roof: " + Math.round(gflops) + " GFLOP/s, " + Math.round(gbytes) + " GB/s" : "";
      heading(build, build.steps.length + " steps, slowest first; a call takes " + duration(total) + roof, into);
      const row = tableOf(into, ["node", "runs as", "time", "share", "", "GFLOP/s", "GB/s", "of the roof"], new Set([2, 3, 5, 6, 7]));
      const slowest = Math.max(...build.steps.map(step => step.seconds));
      const order = [...build.steps].sort((a, b) => b.seconds - a.seconds);
      for (const step of order.slice(0, MAX_ROWS)) {
        const rate = amount => amount && step.seconds ? +(amount / step.seconds / 1e9).toPrecision(3) : "";
        const near = gflops ? Math.max((rate(step.flops) || 0) / gflops, Math.min(1, (rate(step.nbytes) || 0) / gbytes)) : 0;
        const made = row([step.label || step.symbol, step.module + " " + step.symbol, duration(step.seconds), percent(step.seconds / total),
          bar(step.seconds / slowest), rate(step.flops), rate(step.nbytes), near === 1 ? "in cache" : near ? percent(near) : ""]);
        if (step.nodes.length) activate(made, () => { show("Graph"); selectAll(build, step.nodes); });
        for (const { label, implementation, seconds } of step.inside) {
          row(["· " + label, implementation, duration(seconds), percent(seconds / total), bar(seconds / slowest), "", "", ""]).className = "part";
        }
      }
      if (order.length > MAX_ROWS) make("p", "... and " + (order.length - MAX_ROWS) + " more", into);
    },
  },
  Memory: {
    of: build => build.memory,
    show(build, into) {
      const { nbytes, weights, buffers, steps } = build.memory;
      heading(build, "an arena of " + amount(nbytes) + "B over " + steps.length + " steps, beside " + amount(weights) + "B of weights", into);
      make("p", "Each block is a buffer: from the step that writes it to the last that reads it, at its place in the arena. Below, the live bytes.", into, "soft");
      const plot = make("div", null, into, "plot"), canvas = make("canvas", null, plot), told = make("p", " ", into);
      const draw = () => drawMemory(build, canvas);
      requestAnimationFrame(draw);
      canvas.addEventListener("pointermove", event => {
        const step = Math.floor(event.offsetX / canvas.clientWidth * (steps.length + 1)) - 1;
        const place = (1 - event.offsetY / (canvas.clientHeight * 0.78)) * nbytes;
        const hit = buffers.find(each => each.first <= step && step <= each.last && each.offset <= place && place < each.offset + each.nbytes);
        told.textContent = hit ? hit.label + ": " + amount(hit.nbytes) + "B, steps " + hit.first + " to " + hit.last : step >= 0 && steps[step] ? "step " + step + ": " + steps[step] : " ";
      });
      const row = tableOf(into, ["buffer", "bytes", "from step", "to step"], new Set([1, 2, 3]));
      for (const each of [...buffers].sort((a, b) => b.nbytes - a.nbytes).slice(0, 30)) row([each.label, amount(each.nbytes), each.first, each.last]);
    },
  },
  Passes: {
    of: build => build.passes.length,
    show(build, into) {
      heading(build, build.passes.length + " passes changed the module", into);
      const box = make("div", null, into, "passes"), list = make("ol", null, box), text = make("div", null, box);
      const choose = (change, button) => {
        list.querySelectorAll(".on").forEach(each => each.classList.remove("on"));
        button.classList.add("on");
        text.replaceChildren();
        make("h2", change.name + ": lines before (−) and after (+)", text);
        const pre = make("pre", null, text);
        for (const line of change.lines) make("span", line, pre, { "+": "added", "-": "removed", "@": "skip" }[line[0]]);
        if (change.more) make("span", "... and " + change.more + " more lines", pre, "skip");
      };
      build.passes.forEach((change, i) => {
        const button = make("button", null, make("li", null, list), "link");
        make("span", change.name + " ", button);
        make("small", "+" + change.added + " −" + change.removed + " · " + duration(change.seconds), button);
        button.addEventListener("click", () => choose(change, button));
        if (!i) choose(change, button);
      });
    },
  },
  Differences: {
    of: build => builds.length > 1 && build === builds[0],
    show(build, into) {
      const [left, right] = builds, rows = [];
      left.nodes.forEach((_, i) => {
        const there = right.byKey.get(left.key[i]), what = changeOf(left, i);
        const [a, b] = [left.time[i], there === undefined ? null : right.time[there]];
        if (what || (a && b && Math.abs(Math.log2(a / b)) > 0.3)) rows.push([i, there, a, b]);
      });
      const added = right.nodes.flatMap((_, i) => left.byKey.has(right.key[i]) ? [] : [i]);
      make("h2", rows.length + " ops differ in place or time, " + added.length + " are only in " + right.title, into);
      const row = tableOf(into, ["node", "op", left.title, right.title, "time", "time", "ratio"], new Set([4, 5, 6]));
      const place = (of, i) => i === undefined ? "–" : [BACKEND, PATTERN].map(field => of.text(i, field)).filter(Boolean).join(" ");
      rows.sort((a, b) => Math.abs((b[2] || 0) - (b[3] || 0)) - Math.abs((a[2] || 0) - (a[3] || 0)));
      for (const [i, there, a, b] of rows.slice(0, MAX_ROWS)) {
        const made = row([left.text(i, NAME), left.text(i, OP), place(left, i), place(right, there), timeText(left, i), there === undefined ? "" : timeText(right, there), a && b ? +(b / a).toPrecision(3) : ""]);
        activate(made, () => { show("Graph"); select(left, i, true); });
      }
      for (const i of added.slice(0, MAX_ROWS)) activate(row([right.text(i, NAME), right.text(i, OP), "–", place(right, i), "", "", ""]), () => { show("Graph"); select(right, i, true); });
    },
  },
};

function drawMemory(build, canvas) {
  const { nbytes, buffers, steps } = build.memory, ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = 420, body = height * 0.78;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = height + "px";
  const context = canvas.getContext("2d"), cold = cssColour("--cold"), hot = cssColour("--hot"), paper = cssColour("--paper");
  context.scale(ratio, ratio);
  const count = steps.length + 1, across = step => (step + 1) / count * width, most = Math.max(...buffers.map(each => each.nbytes));
  const live = new Float64Array(count + 1);
  for (const each of buffers) {
    const left = across(each.first), right = across(each.last + 1), top = body * (1 - (each.offset + each.nbytes) / nbytes), tall = body * each.nbytes / nbytes;
    context.fillStyle = each.is_input ? cssColour("--edge") : mix(cold, hot, 0.25 + 0.75 * heat(each.nbytes, most));
    context.fillRect(left, top, Math.max(1, right - left), Math.max(1, tall));
    if (tall > 2 && right - left > 2) { context.strokeStyle = paper; context.strokeRect(left, top, right - left, tall); }
    if (tall > 14 && right - left > each.label.length * 6.2 + 8) {
      const colour = each.is_input ? cssColour("--edge") : mix(cold, hot, 0.25 + 0.75 * heat(each.nbytes, most));
      context.fillStyle = inkOn(colour);
      context.font = "10px ui-monospace, monospace";
      context.fillText(each.label, left + 4, top + tall / 2 + 3);
    }
    for (let step = each.first; step <= each.last && step + 1 < live.length; step++) live[step + 1] += each.nbytes;
  }
  const peak = Math.max(...live, 1);
  context.fillStyle = cssColour("--soft");
  context.globalAlpha = 0.5;
  live.forEach((now, i) => context.fillRect(i / count * width, height - (height - body - 16) * now / peak, width / count + 0.5, (height - body - 16) * now / peak));
  context.globalAlpha = 1;
}
