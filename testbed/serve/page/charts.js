// Line charts over a common axis, as SVG, with one cursor for all charts of a group.

import { h, say, svg } from "./dom.js";
import { number, quantity } from "./numbers.js";

const WIDTH = 560, HEIGHT = 150, LEFT = 58, RIGHT = 8, TOP = 14, BOTTOM = 20;
const PLOT = WIDTH - LEFT - RIGHT;
const LETTER = 6.4;

function niceStep(span, wanted) {
  const raw = span / wanted, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw * 0.999) ?? 10 * power;
}

export class Group {
  constructor() {
    this.charts = [];
    this.at = null;
  }

  add(chart) {
    chart.group = this;
    this.charts.push(chart);
    return chart.element;
  }

  // Place the cursor at this index of the common grid; null takes it away.
  point(index) {
    this.at = index;
    for (const chart of this.charts) chart.showCursor();
  }
}

export class Chart {
  // curves: [{label, colour, dashed, area}]; unit as in numbers.js
  constructor(title, unit, curves, { fromZero = true, top = null } = {}) {
    Object.assign(this, { title, unit, curves, fromZero, top, xs: [], values: curves.map(() => []), marks: [] });
    this.keys = curves.map(() => h("span", {}));
    this.body = svg("g");
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: 0 }, this.body, this.cursor);
    this.picture.addEventListener("pointermove", (event) => this.pointed(event));
    this.picture.addEventListener("pointerleave", () => this.group?.point(null));
    this.picture.addEventListener("keydown", (event) => this.pressed(event));
    this.picture.addEventListener("blur", () => this.group?.point(null));
    this.element = h("figure", { class: "card" },
      h("figcaption", {}, h("strong", {}, title), curves.map((curve, index) =>
        h("span", { class: "key" }, sample(curve), `${curve.label} `, this.keys[index]))),
      this.picture);
  }

  // xs: places on the axis, rising; values: one array per curve, null where nothing is known
  set(xs, values, { to = null, marks = [], ticks = null } = {}) {
    Object.assign(this, { xs, values, marks, ticks, to: Math.max(to ?? 0, xs.at(-1) ?? 1) || 1 });
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => { this.pending = null; this.draw(); });
  }

  x(place) { return LEFT + (place / this.to) * PLOT; }

  y(value) { return TOP + (1 - (value - this.low) / (this.high - this.low)) * (HEIGHT - TOP - BOTTOM); }

  draw() {
    const known = this.values.flat().filter((value) => value !== null && value !== undefined);
    const top = this.top ?? (this.unit === "%" && known.every((value) => value <= 1) ? 1 : null);
    const highest = top ?? Math.max(...known, 0), lowest = this.fromZero ? 0 : Math.min(...known, highest);
    const step = niceStep((highest - lowest) || Math.abs(highest) || 1, 3);
    this.low = this.fromZero ? 0 : Math.max(0, (Math.ceil(lowest / step) - 1) * step);
    this.high = top ?? Math.max(Math.ceil((highest * 1.02) / step) * step, this.low + step);
    this.body.replaceChildren(...this.axes(step), ...this.events(), ...this.lines());
    this.showCursor();
  }

  axes(step) {
    const found = [];
    for (let value = this.low; value <= this.high + step / 1e6; value += step) {
      const y = this.y(value);
      found.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }),
        svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, onAxis(Number(value.toPrecision(12)), this.unit)));
    }
    const every = niceStep(this.to, 6);
    const places = this.ticks ?? Array.from({ length: Math.floor(this.to / every + 1e-9) + 1 },
      (_, index) => [index * every, `${number(index * every, 4)} s`]);
    for (const [place, text] of places) {
      found.push(svg("text", { x: this.x(place), y: HEIGHT - 5, "text-anchor": this.x(place) > WIDTH - 40 ? "end" : "middle" }, text));
    }
    return found;
  }

  events() {
    let free = 0;
    const moments = new Map();
    for (const mark of this.marks) {
      if (mark.t_s >= 0 && mark.t_s <= this.to) moments.set(mark.t_s, [...moments.get(mark.t_s) ?? [], mark.text]);
    }
    return [...moments].flatMap(([moment, texts]) => {
      const x = this.x(moment), line = svg("line", { class: "event", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM });
      const text = texts.join(", "), end = x + text.length * LETTER;
      if (x < free || end > WIDTH) return [line];
      free = end;
      return [line, svg("text", { class: "event", x: x + 3, y: TOP - 3 }, text)];
    });
  }

  lines() {
    return this.curves.flatMap((curve, index) => {
      const pieces = this.pieces(this.values[index]);
      const d = pieces.map((piece) => `M${piece.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L")}`).join("");
      const line = svg("path", { class: `line c-${curve.colour}${curve.dashed ? " dashed" : ""}`, d });
      if (curve.dots) {
        return [line, ...pieces.flat().map(([x, y, at]) => svg("circle",
          { class: `dot c-${curve.colours(at)}`, cx: x, cy: y, r: 3.5 }))];
      }
      if (!curve.area) return [line];
      const base = (HEIGHT - BOTTOM).toFixed(1);
      const closed = pieces.map((piece) => `M${piece[0][0].toFixed(1)},${base}L` +
        piece.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L") + `L${piece.at(-1)[0].toFixed(1)},${base}Z`);
      return [svg("path", { class: `area f-${curve.colour}`, d: closed.join("") }), line];
    });
  }

  // Stretches without a gap, each a list of [x, y, index].
  pieces(values) {
    const found = [];
    let open = null;
    values.forEach((value, index) => {
      if (value === null || value === undefined) { open = null; return; }
      if (open === null) found.push(open = []);
      open.push([this.x(this.xs[index]), this.y(Math.min(Math.max(value, this.low), this.high)), index]);
    });
    return found;
  }

  pointed(event) {
    const box = this.picture.getBoundingClientRect();
    const place = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / PLOT * this.to;
    let index = this.xs.findIndex((x) => x >= place);
    if (index < 0) index = this.xs.length - 1;
    this.group?.point(index);
  }

  pressed(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    const last = this.xs.length - 1, at = this.group?.at ?? last;
    const wanted = { Home: 0, End: last }[event.key] ?? (by === undefined ? null : Math.min(Math.max(at + by, 0), last));
    if (wanted === null) return;
    event.preventDefault();
    this.group?.point(wanted);
    this.picture.setAttribute("aria-label", this.spoken());
    say(this.spoken()); // a label that changes under the focus is not read out
  }

  showCursor() {
    const at = this.group?.at ?? null, last = this.xs.length - 1;
    this.cursor.setAttribute("visibility", at === null || at > last ? "hidden" : "visible");
    if (at !== null && at <= last) {
      this.cursor.setAttribute("x1", this.x(this.xs[at]));
      this.cursor.setAttribute("x2", this.x(this.xs[at]));
    }
    this.curves.forEach((_, index) => {
      this.keys[index].textContent = quantity(this.valueAt(index, at), this.unit);
    });
    if (at === null) this.picture.setAttribute("aria-label", this.spoken());
  }

  // The value under the cursor, or the last one that is known.
  valueAt(index, at) {
    const values = this.values[index];
    return at === null ? values.findLast((value) => value !== null && value !== undefined) : values[at];
  }

  spoken() {
    const at = this.group?.at ?? null;
    const when = at === null ? "last" : this.ticks ? `at ${at + 1}` : `at ${number(this.xs[at], 4)} s`;
    const parts = this.curves.map((curve, index) => `${curve.label} ${quantity(this.valueAt(index, at), this.unit)}`);
    return `${this.title}, ${when}: ${parts.join(", ")}. Arrow keys move through time.`;
  }
}

// Every event in words, as charts name only those that there is room for.
export class Events {
  constructor() {
    this.summary = h("summary", {});
    this.list = h("ul", {});
    this.element = h("details", { hidden: true }, this.summary, this.list);
  }

  set(marks) {
    const texts = marks.map((mark) => `${number(mark.t_s, 4)} s: ${mark.text}`);
    // What has not changed is left alone: somebody may be reading it.
    if (texts.join("\n") === this.shown) return;
    this.shown = texts.join("\n");
    this.element.hidden = texts.length === 0;
    this.summary.textContent = texts.length === 1 ? "1 event" : `${texts.length} events`;
    this.list.replaceChildren(...texts.map((text) => h("li", {}, text)));
  }
}

// The chart's title says what is counted.
function onAxis(value, unit) {
  return quantity(value, ["bps", "bytes", "s", "%"].includes(unit) ? unit : "");
}

function sample(curve) {
  return svg("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" },
    svg("path", { class: `line c-${curve.colour}${curve.dashed ? " dashed" : ""}`, d: "M0,4L22,4" }));
}
