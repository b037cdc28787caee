// Cursor and zoom, shared by all charts. Everything is readable without this file.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const whole = data.span, { left, width } = data.plot;
  const charts = [...document.querySelectorAll("svg.chart")];
  const said = document.getElementById("said");
  const at = document.getElementById("cursor-at");
  const buttons = [...document.querySelectorAll(".tools button")];
  let view = whole.slice();
  document.documentElement.classList.add("js");

  const x = (t) => left + (t - view[0]) / (view[1] - view[0]) * width;
  const svg = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const name in attributes) made.setAttribute(name, attributes[name]);
    return made;
  };

  function ticks() {
    const raw = (view[1] - view[0]) / 12, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999999);
    const found = [];
    for (let index = Math.ceil(view[0] / step - 1e-9); index * step <= view[1] + 1e-9; index++) {
      found.push([index * step, step < 1 ? (index * step).toFixed(Math.ceil(-Math.log10(step))) : String(index * step)]);
    }
    return found;
  }

  function show(from, to) {
    if (to - from < 0.05) return;
    view = [Math.max(from, whole[0]), Math.min(to, whole[1])];
    const scale = (whole[1] - whole[0]) / (view[1] - view[0]);
    const shift = left * (1 - scale) + (whole[0] - view[0]) / (view[1] - view[0]) * width;
    for (const chart of charts) {
      chart.querySelector(".stretch").setAttribute("transform", `matrix(${scale} 0 0 1 ${shift} 0)`);
      const group = chart.querySelector(".time-ticks");
      const y = chart.viewBox.baseVal.height - 6;
      if (group) group.replaceChildren(...ticks().map(([t, text]) => {
        const label = svg("text", { x: x(t), y: y, class: "time-tick" });
        label.textContent = text;
        return label;
      }));
      for (const label of chart.querySelectorAll(".event-label")) {
        const t = Number(label.dataset.t);
        label.setAttribute("x", x(t) + Number(label.dataset.offset));
        const cut = Number(label.dataset.offset) > 0 && x(t) > left + width - 24;
        label.style.display = t < view[0] || t > view[1] || cut ? "none" : "";
      }
    }
    for (const button of buttons) {
      const same = Number(button.dataset.from) === view[0] && Number(button.dataset.to) === view[1];
      button.setAttribute("aria-pressed", String(same));
    }
  }

  function valueAt(series, t) {
    let low = 0, high = series.t.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (series.t[middle] <= t) low = middle + 1; else high = middle;
    }
    const value = low ? series.v[low - 1] : null;
    return value === null ? "–" : value >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  }

  function point(t) {
    for (const chart of charts) {
      const line = chart.querySelector(".cursor");
      line.setAttribute("x1", x(t));
      line.setAttribute("x2", x(t));
      line.classList.add("on");
    }
    for (const id in data.series) document.getElementById(id).textContent = valueAt(data.series[id], t);
    at.textContent = `t = ${t.toFixed(2)} s`;
  }

  function clear() {
    for (const chart of charts) chart.querySelector(".cursor").classList.remove("on");
    for (const id in data.series) document.getElementById(id).textContent = "";
    at.textContent = "";
  }

  // By keyboard: arrows move the cursor, Enter asks for what was under way there.
  let cursor = null;
  function keyed(event, chart) {
    const size = (view[1] - view[0]) / (event.shiftKey ? 10 : 100);
    const before = cursor === null || cursor < view[0] || cursor > view[1] ? view[0] : cursor;
    const after = { ArrowLeft: before - size, ArrowRight: before + size, Home: view[0], End: view[1], Enter: before }[event.key];
    if (after === undefined) return;
    event.preventDefault();
    cursor = Math.min(view[1], Math.max(view[0], after));
    point(cursor);
    if (event.key === "Enter") {
      document.dispatchEvent(new CustomEvent("moment", { detail: cursor }));
      return;
    }
    const values = [...chart.closest(".panel").querySelectorAll(".key output")].map((one) => `${one.parentElement.firstChild.nextSibling.textContent} ${one.textContent}`);
    said.textContent = [`${cursor.toFixed(2)} s`, ...values].join("; ");
  }

  for (const chart of charts) {
    let started = null, box = null, dragged = false;
    chart.setAttribute("tabindex", "0");
    chart.addEventListener("keydown", (event) => keyed(event, chart));
    chart.addEventListener("blur", clear);
    const time = (event) => {
      const area = chart.getBoundingClientRect();
      const place = (event.clientX - area.left) / area.width * chart.viewBox.baseVal.width;
      return view[0] + Math.min(1, Math.max(0, (place - left) / width)) * (view[1] - view[0]);
    };
    chart.addEventListener("pointermove", (event) => {
      const t = time(event);
      point(t);
      if (started === null) return;
      box.setAttribute("x", Math.min(x(started), x(t)));
      box.setAttribute("width", Math.abs(x(t) - x(started)));
    });
    chart.addEventListener("pointerleave", () => { if (started === null) clear(); });
    chart.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      event.preventDefault();
      dragged = false;
      started = time(event);
      box = chart.appendChild(svg("rect", { class: "selection", y: 0, height: chart.dataset.base, width: 0 }));
      chart.setPointerCapture(event.pointerId);
    });
    const finish = (event) => {
      if (started === null) return;
      const ended = time(event), from = Math.min(started, ended), to = Math.max(started, ended);
      started = null;
      box.remove();
      dragged = to - from > (view[1] - view[0]) / 100;
      if (dragged) show(from, to);
    };
    chart.addEventListener("pointerup", finish);
    chart.addEventListener("pointercancel", finish);
    chart.addEventListener("click", (event) => {
      if (!dragged) document.dispatchEvent(new CustomEvent("moment", { detail: time(event) }));
      dragged = false;
    });
    chart.addEventListener("dblclick", () => show(whole[0], whole[1]));
  }
  for (const button of buttons) {
    button.addEventListener("click", () => show(Number(button.dataset.from), Number(button.dataset.to)));
  }
  // On paper nothing can be unfolded.
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    for (const one of unfolded) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of unfolded) one.open = false; });
  document.addEventListener("span", (event) => show(...event.detail));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") show(whole[0], whole[1]); });
})();
