"use strict";
// What the page shows, and its controls. Charts are chart.js's.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { against: "epoch", bytesLog: true, hidden: new Set() };
const redraws = [];
const redraw = () => redraws.forEach((work) => work());

const X_AXES = {
  epoch: { kind: "number", label: "epoch", zero: true },
  examples: { kind: "count", label: data.examples, zero: true },
  bytes: { kind: "bytes", label: "sent by a worker", zero: true },
  received: { kind: "bytes", label: "received by a worker", zero: true },
  time: { kind: "time", label: data.emulated ? `training time over an emulated ${data.emulated}` : "training time", zero: true },
  link: { kind: "time", label: `time over ${data.link}, computed`, zero: true },
};
const ofBytes = (against) => against === "bytes" || against === "received";

/** What loss and metric can be drawn against, as far as this run says it. */
function againstChoices() {
  const has = (axis) => data.series.some((series) => Object.values(series.curves).some((curve) => curve && curve[axis]));
  return [["epoch", "epochs", true], ["examples", data.examples, data.examples], ["bytes", "bytes sent", true],
    ["received", "bytes received", data.local], ["time", "time", true], ["link", `time over ${data.link}`, data.link]]
    .filter(([axis, , wanted]) => wanted && (axis === "epoch" || axis === "bytes" || axis === "time" || has(axis)));
}

/** A row of choices, one of them taken: native radio buttons, so that keys work as everywhere. */
let groups = 0;
function choices(parent, label, options, chosen, changed) {
  const name = `choice${groups++}`;
  const set = make("div", { class: "choices", role: "radiogroup", "aria-label": label }, parent);
  make("span", { class: "about" }, set, label);
  for (const [value, text] of options) {
    const button = make("label", {}, set);
    const input = make("input", { type: "radio", name, value }, button);
    input.checked = value === chosen;
    input.addEventListener("change", () => changed(value));
    make("span", {}, button, text);
  }
  return set;
}

/** Lines of the series that are shown and have the quantity. */
function linesOf(against, curveOf, marks = false) {
  const lines = [];
  data.series.forEach((series, index) => {
    const curve = curveOf(series);
    if (state.hidden.has(index) || !curve || !curve[against]) return;
    lines.push({
      series: index, label: series.label, x: curve[against], step: curve.step, marks,
      y: curve.smooth || curve.y, raw: curve.smooth ? curve.y : null,
    });
  });
  return lines;
}

/** Hidden by the reader, or not there at all? */
function emptyText(curveOf) {
  return data.series.some((series) => curveOf(series)) ? "all series with values are hidden" : "no values";
}

function legend(parent) {
  const list = make("div", { class: "legend", role: "group", "aria-label": "Series shown" }, parent);
  data.series.forEach((series, index) => {
    const button = make("button", { type: "button", "aria-pressed": "true", title: "show or hide" }, list);
    button.append(swatch(index));
    make("span", {}, button, series.label);
    button.addEventListener("click", () => {
      const hide = !state.hidden.has(index);
      if (hide) state.hidden.add(index); else state.hidden.delete(index);
      button.setAttribute("aria-pressed", String(!hide));
      redraw();
    });
  });
}

function toolbar(parent) {
  const bar = make("div", { class: "toolbar" }, parent);
  legend(bar);
  const right = make("div", { class: "controls" }, bar);
  const scale = choices(right, "Scale of bytes", [["log", "log"], ["linear", "linear"]], "log", (value) => {
    state.bytesLog = value === "log";
    redraw();
  });
  scale.hidden = true;
  choices(right, "Loss and metric against", againstChoices(), "epoch",
    (value) => {
      state.against = value;
      scale.hidden = !ofBytes(value);
      redraw();
    });
}

/** A chart of one of several quantities: [{name, curveOf, y, marks}], by a choice when there is more than one. */
function chart(parent, title, wide, quantities, againstOf) {
  const there = quantities.filter((q) => data.series.some((series) => q.curveOf(series)));
  if (there.length === 0) return;
  const plot = new Chart(parent, title, wide);
  let chosen = there[0];
  const show = () => {
    const against = againstOf();
    const log = ofBytes(against) && state.bytesLog;
    plot.show({
      x: { ...X_AXES[against], log }, y: chosen.y,
      lines: linesOf(against, chosen.curveOf, chosen.marks), empty: emptyText(chosen.curveOf),
    });
  };
  if (there.length > 1) {
    choices(plot.head, title, there.map((q) => [q.name, q.name]), chosen.name, (name) => {
      chosen = there.find((q) => q.name === name);
      show();
    });
  }
  redraws.push(show);
}

const ofSteps = (name) => (series) => series.curves[name];

/** The metric itself, and what else was measured with it under another name. */
function metricQuantities() {
  const label = data.metric;
  const y = (name) => ({ kind: "number", label: name, unit: data.unit });
  const list = [{ name: label, curveOf: ofSteps("metric"), y: y(label), marks: true }];
  const names = new Set(data.series.flatMap((series) => Object.keys(series.metrics)));
  for (const name of names) {
    const same = data.series.every((series) => !series.metrics[name] ||
      JSON.stringify(series.metrics[name].y) === JSON.stringify(series.curves.metric?.y));
    if (!same) list.push({ name, curveOf: (series) => series.metrics[name], y: y(name), marks: true });
  }
  // The short name, where the metric has one, fits the other choices.
  const short = [...names].find((name) => !list.some((q) => q.name === name));
  if (short && list.length > 1) list[0].name = short;
  return list;
}

function plots() {
  const parent = document.getElementById("plots");
  if (data.series.every((series) => Object.values(series.curves).every((curve) => curve === null))) {
    make("p", {}, parent, "There are no curves yet.");
    return;
  }
  toolbar(parent);
  const grid = make("div", { class: "charts" }, parent);
  const chosen = () => state.against, epochs = () => "epoch";
  const upper = data.metric.charAt(0).toUpperCase() + data.metric.slice(1);
  chart(grid, "Loss", true, [
    { name: "training", curveOf: ofSteps("loss"), y: { kind: "number", label: "training loss", log: true } },
    { name: "validation", curveOf: ofSteps("validation"), y: { kind: "number", label: "validation loss", log: true }, marks: true },
  ], chosen);
  chart(grid, upper, true, metricQuantities(), chosen);
  chart(grid, "Share sent", false, [
    { name: "share", curveOf: ofSteps("share"), y: { kind: "share", label: "of the gradient’s entries", log: true, most: 1 } },
  ], epochs);
  chart(grid, "Ratio", false, [
    { name: "message", curveOf: ofSteps("message_ratio"), y: { kind: "ratio", label: "message ratio", log: true } },
    { name: "traffic", curveOf: ofSteps("traffic_ratio"), y: { kind: "ratio", label: "traffic ratio", log: true } },
  ], epochs);
  chart(grid, "Training", false, [
    { name: "rate", curveOf: ofSteps("lr"), y: { kind: "number", label: "learning rate", zero: true } },
    { name: "gradient", curveOf: ofSteps("gradient_norm"), y: { kind: "number", label: "norm of the gradient" } },
    { name: "residual", curveOf: ofSteps("residual_norm"), y: { kind: "number", label: "norm of what waits to be sent" } },
    { name: "speed", curveOf: ofSteps("examples_per_second"), y: { kind: "number", label: "examples a second", zero: true } },
  ], epochs);
  make("p", { class: "hint" }, parent, "Faint lines are single steps, strong ones the mean of the steps around. " +
    "Point, touch, or use the arrow keys to read values; the names above hide and show series.");
  redraw();
}

/** Headings of tables that sort their rows; the same again turns the order round. */
function sorting(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = make("button", { type: "button" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const numbers = head.classList.contains("n");
      // Numbers begin with the largest: that is what one looks for.
      const down = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : numbers;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => (numbers ? Number(row.cells[column].dataset.v) : row.cells[column].textContent);
      const compare = (a, b) => (numbers ? a - b : a.localeCompare(b, "en", { numeric: true }));
      const rows = [...body.rows].sort((a, b) => compare(key(a), key(b)) * (down ? -1 : 1));
      body.append(...rows);
    });
  });
}

/** Tables that are wider than their place say so, until the last column is in sight. */
function wideTables() {
  for (const box of document.querySelectorAll(".scroll")) {
    const hint = make("p", { class: "swipe", hidden: "" }, null, "scroll sideways for more columns →");
    box.after(hint);
    const update = () => {
      const more = box.scrollWidth - box.clientWidth - box.scrollLeft > 2;
      box.classList.toggle("more", more);
      hint.hidden = !more;
    };
    box.addEventListener("scroll", update, { passive: true });
    new ResizeObserver(update).observe(box);
    update();
  }
}

/** A reading of the parts of the bars, where the pointer or the focus is. */
function tips() {
  const tip = make("div", { class: "tip over", hidden: "" }, document.body);
  const show = (event) => {
    const part = event.target.closest?.("[data-tip]");
    tip.hidden = !part;
    if (!part) return;
    tip.textContent = part.dataset.tip;
    const box = part.getBoundingClientRect();
    const middle = box.left + box.width / 2 - tip.offsetWidth / 2;
    tip.style.left = `${Math.max(4, Math.min(middle, document.documentElement.clientWidth - tip.offsetWidth - 4)) + scrollX}px`;
    tip.style.top = `${box.top + scrollY - tip.offsetHeight - 6}px`;
  };
  for (const name of ["pointerover", "pointerdown", "focusin"]) document.addEventListener(name, show);
  document.addEventListener("focusout", () => { tip.hidden = true; });
}

plots();
document.querySelectorAll("table.sortable").forEach(sorting);
wideTables();
tips();
document.documentElement.dataset.drawn = "yes";
