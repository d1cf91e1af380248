"use strict";
// A line chart as SVG: scales, ticks, curves with gaps, and a reading of values by mouse, touch and keyboard.

function make(name, attributes = {}, parent = null, text = null) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function draw(name, attributes, parent, text = null) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  parent.append(element);
  return element;
}

const styleOf = (series) => `c${series % 8} d${series % 5}`;

/** Digits enough to tell values apart, without the zeros at the end. */
function plain(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace(/\.?0+e\+?/, "e");
  return size >= 1e3 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(digits)));
}

const UNITS = {
  bytes: [[1, "B"], [1e3, "kB"], [1e6, "MB"], [1e9, "GB"], [1e12, "TB"]],
  time: [[1, "s"], [60, "min"], [3600, "h"]],
  count: [[1, ""], [1e3, "thousand"], [1e6, "million"], [1e9, "billion"]],
};

/** The unit in which `most` is written: [factor, name]. */
function unitFor(kind, most) {
  if (kind === "share") return [0.01, "%"];
  const reach = kind === "time" ? 3 : 1;  // up to 180 s in seconds
  return (UNITS[kind] || [[1, ""]]).filter(([factor], i) => i === 0 || most >= factor * reach).at(-1);
}

function valueText(kind, value) {
  const [factor, unit] = unitFor(kind, Math.abs(value));
  return plain(value / factor) + (unit ? "\u00a0" + unit : kind === "ratio" ? "×" : "");
}

function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((m) => m * power >= rough * 0.999) * power;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  const within = decades > count / 2 ? [1] : decades > 0.8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
  const every = Math.max(1, Math.ceil(decades / count));
  const ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    if (e % every !== 0) continue;
    for (const m of within) {
      const tick = m * 10 ** e;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks;
}

/** Maps values to pixels from..to. `axis`: {kind, label, unit, log, zero: begin there, most: no tick above}. */
class Scale {
  constructor(axis, values, from, to, count) {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (axis.log) {
      if (high / low < 1.5) { low /= 2; high *= 2; }
      else if (!axis.tight) { const room = (high / low) ** 0.05; low /= room; high *= room; }
    } else {
      if (axis.zero || (low > 0 && low < 0.3 * high)) low = 0;
      if (high === low) { const room = Math.abs(high) * 0.1 || 1; low -= low === 0 ? 0 : room; high += room; }
      else if (!axis.tight) { const room = (high - low) * 0.05; low -= low === 0 ? 0 : room; high += room; }
    }
    Object.assign(this, { axis, low, high, from, to });
    const [factor, unit] = unitFor(axis.kind, high);
    this.factor = factor;
    this.ticks = axis.log ? logTicks(low, high, count)
      : linearTicks(low / factor, high / factor, count).map((tick) => tick * factor);
    if (axis.most) this.ticks = this.ticks.filter((tick) => tick <= axis.most * 1.001);
    const named = unit && !axis.log;
    this.label = axis.label + (named ? `, ${unit}` : axis.unit ? `, ${axis.unit}` : "");
  }
  tickText(tick) {
    return this.axis.log ? valueText(this.axis.kind, tick) : plain(tick / this.factor);
  }
  at(value) {
    const share = this.axis.log ? Math.log(value / this.low) / Math.log(this.high / this.low)
      : (value - this.low) / (this.high - this.low);
    return this.from + share * (this.to - this.from);
  }
}

/** Marks of the points of series, told apart by shape as well as by colour. */
const MARKS = [
  (x, y) => `M${x - 3.4},${y}a3.4,3.4 0 1,0 6.8,0a3.4,3.4 0 1,0 -6.8,0z`,
  (x, y) => `M${x - 3},${y - 3}h6v6h-6z`,
  (x, y) => `M${x},${y - 4}l4,7h-8z`,
  (x, y) => `M${x},${y - 4.4}l4.4,4.4l-4.4,4.4l-4.4,-4.4z`,
];

class Chart {
  /** `parent` gets a card with a title, a place for controls and the plot. */
  constructor(parent, title, wide) {
    this.card = make("figure", { class: wide ? "card chart wide" : "card chart" }, parent);
    this.head = make("figcaption", {}, this.card);
    this.title = make("h3", {}, this.head, title);
    this.plot = make("div", { class: "plot", tabindex: "0", role: "group" }, this.card);
    this.tip = make("div", { class: "tip", role: "status", hidden: "" }, this.plot);
    this.height = wide ? 300 : 230;
    const plot = this.plot;
    plot.addEventListener("pointermove", (event) => this.point(event));
    plot.addEventListener("pointerdown", (event) => this.point(event));
    plot.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.leave(); });
    plot.addEventListener("blur", () => this.leave());
    plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => { if (plot.clientWidth !== this.width) this.draw(); }).observe(plot);
  }

  /** `view`: {x, y: axes, lines: [{series, label, x, y, raw, step, marks}]}. */
  show(view) {
    const reading = this.column ?? null;
    this.view = view;
    this.draw();
    if (reading !== null) this.read(reading);
  }

  draw() {
    if (!this.view || !this.plot.clientWidth) return;
    this.leave();
    this.svg?.remove();
    const { x, y } = this.view;
    const width = this.width = this.plot.clientWidth;
    const usable = (axis, value) => value !== null && value !== undefined && (!axis.log || value > 0);
    const xs = [], ys = [];
    const lines = this.view.lines.map((line) => ({
      ...line, ok: line.x.map((v, i) => usable(x, v) && usable(y, line.y[i])),
    }));
    for (const line of lines) {
      line.ok.forEach((ok, i) => {
        if (!ok) return;
        xs.push(line.x[i]);
        ys.push(line.y[i]);
        if (line.raw && usable(y, line.raw[i])) ys.push(line.raw[i]);
      });
    }
    this.plot.setAttribute("aria-label", `${this.title.textContent}: ${y.label} against ${x.label}. ` +
      "Left and right arrow keys read values.");
    this.svg = draw("svg", { viewBox: `0 0 ${width} ${this.height}`, "aria-hidden": "true" }, this.plot);
    this.lines = [];
    if (xs.length === 0) {
      draw("text", { x: width / 2, y: this.height / 2, class: "none" }, this.svg,
        this.view.lines.length ? "no values" : this.view.empty || "all series are hidden");
      return;
    }
    const bottom = this.height - 38;
    this.y = new Scale(y, ys, bottom, 26, 5);
    const left = 14 + 6.6 * Math.max(...this.y.ticks.map((tick) => this.y.tickText(tick).length));
    this.x = new Scale({ ...x, tight: true }, xs, left, width - 12, Math.max(2, Math.floor((width - left) / (x.log ? 85 : 60))));
    this.bottom = bottom;
    this.axes(width, left);
    for (const line of lines) this.line(line);
    this.cross = draw("g", { class: "cross", visibility: "hidden" }, this.svg);
  }

  axes(width, left) {
    for (const tick of this.y.ticks) {
      const at = this.y.at(tick);
      draw("path", { d: `M${left},${at}H${width - 12}`, class: "grid" }, this.svg);
      draw("text", { x: left - 6, y: at + 4, class: "tick end" }, this.svg, this.y.tickText(tick));
    }
    for (const tick of this.x.ticks) {
      const at = this.x.at(tick), text = this.x.tickText(tick);
      draw("path", { d: `M${at},${this.bottom}v5`, class: "axis" }, this.svg);
      const edge = at + 3.4 * text.length > width ? " end" : "";
      draw("text", { x: edge ? width - 2 : at, y: this.bottom + 18, class: "tick middle" + edge }, this.svg, text);
    }
    draw("path", { d: `M${left},${this.bottom}H${width - 12}`, class: "axis" }, this.svg);
    draw("text", { x: 2, y: 13, class: "name" }, this.svg, this.y.label);
    draw("text", { x: width - 12, y: this.height - 4, class: "name end" }, this.svg, this.x.label);
  }

  line(line) {
    const group = draw("g", { class: styleOf(line.series), "data-series": line.label }, this.svg);
    const places = line.x.map((v, i) => (line.ok[i] ? [this.x.at(v), this.y.at(line.y[i])] : null));
    const path = (points) => {
      let d = "", pen = "M";
      for (const p of points) {
        if (p) d += `${pen}${p[0].toFixed(1)},${p[1].toFixed(1)}`;
        pen = p ? "L" : "M";
      }
      return d;
    };
    if (line.raw) {
      const raw = line.x.map((v, i) => (places[i] && line.raw[i] !== null ? [places[i][0], this.y.at(line.raw[i])] : null));
      draw("path", { d: path(raw), class: "raw" }, group);
    }
    draw("path", { d: path(places), class: "curve" }, group);
    const there = places.filter(Boolean);
    if (line.marks && there.length <= 80 || there.length === 1) {
      const shape = MARKS[line.series % MARKS.length];
      draw("path", { d: there.map((p) => shape(p[0], p[1])).join(""), class: "marks" }, group);
    }
    this.lines.push({ ...line, places });
  }

  /** The point of a line nearest to a pixel column. */
  nearest(line, column) {
    let best = -1, distance = Infinity;
    line.places.forEach((place, i) => {
      const away = place ? Math.abs(place[0] - column) : Infinity;
      if (away < distance) { distance = away; best = i; }
    });
    return { line, index: best, distance };
  }

  point(event) {
    const box = this.plot.getBoundingClientRect();
    this.read((event.clientX - box.left) * this.width / box.width);
  }

  read(column) {
    if (!this.lines?.length) return;
    const found = this.lines.map((line) => this.nearest(line, column)).filter((n) => n.index >= 0);
    if (found.length === 0) return;
    const first = found.reduce((a, b) => (b.distance < a.distance ? b : a));
    const at = first.line.places[first.index][0];
    this.column = at;
    this.cross.replaceChildren();
    this.cross.setAttribute("visibility", "visible");
    draw("path", { d: `M${at},26V${this.bottom}`, class: "ruler" }, this.cross);
    const step = first.line.step?.[first.index];
    const where = (this.x.axis.kind === "number" ? this.x.axis.label + " " : "") +
      valueText(this.x.axis.kind, first.line.x[first.index]);
    this.tip.replaceChildren();
    make("p", {}, this.tip, where + (step === undefined || step === null ? "" : ` · step ${step.toLocaleString("en-US")}`));
    for (const { line, index } of found) {
      const place = line.places[index];
      // Series that are not near (on an axis of bytes, say) have no value here.
      if (Math.abs(place[0] - at) > 14) continue;
      draw("circle", { cx: place[0], cy: place[1], r: 4.5, class: `dot ${styleOf(line.series)}` }, this.cross);
      const row = make("div", {}, this.tip);
      row.append(swatch(line.series));
      make("span", {}, row, line.label);
      make("b", {}, row, valueText(this.y.axis.kind, line.y[index]) + (this.y.axis.unit === "%" ? "\u00a0%" : ""));
    }
    this.tip.hidden = false;
    const room = this.plot.clientWidth, wide = this.tip.offsetWidth;
    const beside = at * room / this.width;
    const start = beside + 14 + wide > room ? beside - wide - 14 : beside + 14;
    this.tip.style.left = `${Math.max(0, Math.min(start, room - wide))}px`;
  }

  leave() {
    this.tip.hidden = true;
    this.cross?.setAttribute("visibility", "hidden");
    this.column = null;
  }

  key(event) {
    const jump = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") this.leave();
    if (jump === undefined || !this.lines?.length) return;
    event.preventDefault();
    const count = (line) => line.places.filter(Boolean).length;
    const line = this.lines.reduce((a, b) => (count(b) > count(a) ? b : a));
    const columns = line.places.filter(Boolean).map((place) => place[0]);
    const here = this.column === null ? -1 : this.nearest({ places: columns.map((c) => [c]) }, this.column).index;
    const far = here < 0 ? 0 : here + jump * (event.shiftKey ? 10 : 1);
    this.read(columns[Math.max(0, Math.min(columns.length - 1, far))]);
  }
}

/** A short line in the colour and dash pattern of a series. */
function swatch(series) {
  const holder = make("span", {});
  const svg = draw("svg", { class: `swatch ${styleOf(series)}`, viewBox: "0 0 28 8", "aria-hidden": "true" }, holder);
  draw("path", { d: "M1 4H27" }, svg);
  return svg;
}
