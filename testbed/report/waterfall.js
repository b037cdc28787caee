// Single requests on the time axis of the charts. Listens for `moment` (a time, in seconds) of report.js.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("request-data").textContent);
  const { span, plot } = JSON.parse(document.getElementById("chart-data").textContent);
  const figure = document.getElementById("waterfall"), chart = figure.querySelector("svg.chart");
  const now = figure.querySelector(".now"), table = figure.querySelector("details .scroll");
  const ROW = 17, TOP = 12, BOTTOM = 24, PER_PAGE = 30, SLOWEST = 20;
  const unit = data.unit, count = data.id.length;

  const summed = (differences) => { let sum = 0; return differences.map((one) => (sum += one)); };
  const sent = summed(data.sent), all = data.all && { sent: summed(data.all.sent), ended: summed(data.all.ended) };
  const carried = Array.from({ length: count }, () => []);
  summed(data.transfers[0]).forEach((row, index) => {
    carried[row].push([data.transfers[1][index], data.transfers[2][index], data.transfers[3][index]]);
  });
  const x = (t) => plot.left + (t - span[0]) / (span[1] - span[0]) * plot.width;
  const place = (row, ticks) => x((sent[row] + ticks) * unit);
  const seconds = (ticks) => ticks === null ? "–" : `${Number((ticks * unit).toPrecision(4))} s`;
  const between = (row, from, to) => data[from][row] === null || data[to][row] === null ? null : data[to][row] - data[from][row];
  const lost = (row) => data.state[row] !== 0;
  const made = (tag, attributes, text) => {
    const one = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const name in attributes) one.setAttribute(name, attributes[name]);
    if (text !== undefined) one.textContent = text;
    return one;
  };
  const html = (tag, text, attributes = {}) => {
    const one = document.createElement(tag);
    for (const name in attributes) one.setAttribute(name, attributes[name]);
    one.textContent = text;
    return one;
  };

  let rows = [], first = 0, sentence = "", moment = null, picked = null, from = null;
  const group = made("g", { class: "requests" });
  chart.querySelector(".stretch").appendChild(group);

  function parts(row) {
    const { queued, start, end, kv, done } = data;
    const last = done[row] === null ? span[1] / unit - sent[row] : done[row];
    const ends = [["rest", queued[row]], ["queue", start[row]], ["prefill", end[row]], ["kv", kv[row]], ["decode", last]];
    if (ends.slice(0, 4).every(([, at]) => at === null)) return [["rest", 0, last]];
    const found = [];
    let since = 0;
    for (const [name, at] of ends) {
      if (at === null || at < since) continue;
      if (at > since) found.push([name, since, at]);
      since = at;
    }
    // What did not get to decode ended in the part after the last one that it finished.
    if (kv[row] === null && found.length && found[found.length - 1][0] === "decode") {
      found[found.length - 1][0] = end[row] !== null ? "kv" : start[row] !== null ? "prefill" : queued[row] !== null ? "queue" : "rest";
    }
    return found;
  }

  function said(row) {
    const lines = [`request ${data.id[row]}: ${data.tokens[row].toLocaleString("en")} tokens, ${data.states[data.state[row]]}`];
    if (data.cause[row] !== null) lines.push(data.names[data.cause[row]]);
    if (data.prefill[row] !== null) lines.push(`${data.names[data.prefill[row]]} → ${data.decode[row] === null ? "–" : data.names[data.decode[row]]}`);
    if (data.attempts[row] > 1) lines.push(`${data.attempts[row]} attempts`);
    for (const [name, since, at] of parts(row)) lines.push(`${name === "kv" ? "KV transfer not hidden" : name}: ${seconds(at - since)}`);
    if (data.first[row] !== null) lines.push(`first token after ${seconds(data.first[row])}`);
    return lines.join("\n");
  }

  function drawn(row, index) {
    const y = TOP + index * ROW, one = made("g", {});
    one.appendChild(made("title", {}, said(row)));
    if (data.id[row] === picked) one.appendChild(made("rect", { x: plot.left, y: y - 1, width: plot.width, height: ROW, class: "picked" }));
    for (const [name, since, at] of parts(row)) {
      const left = place(row, since);
      one.appendChild(made("rect", { x: left, y: y + 1, width: Math.max(place(row, at) - left, 0.05), height: 9, class: `f-${name}` }));
    }
    for (const [since, at, arrived] of carried[row]) {
      const left = place(row, since), last = at ?? data.done[row], right = last === null ? x(span[1]) : place(row, last);
      one.appendChild(made("rect", { x: left, y: y + 11, width: Math.max(right - left, 0.05), height: 3, class: arrived ? "f-sent" : "f-lost" }));
    }
    const line = (at, kind, height) => {
      one.appendChild(made("line", { x1: place(row, at), x2: place(row, at), y1: y, y2: y + height, class: kind }));
    };
    if (data.first[row] !== null) line(data.first[row], "first-token", 11);
    if (lost(row) && data.done[row] !== null) line(data.done[row], "gave-up", 15);
    return one;
  }

  function draw() {
    const shown = rows.slice(first, first + PER_PAGE), height = TOP + Math.max(shown.length, 1) * ROW + BOTTOM;
    const base = height - BOTTOM;
    chart.setAttribute("viewBox", `0 0 1100 ${height}`);
    chart.dataset.base = base;
    for (const one of chart.querySelectorAll(".shaded, .plot, clipPath rect")) one.setAttribute("height", base);
    for (const one of chart.querySelectorAll(".event, .cursor")) one.setAttribute("y2", base);
    for (const one of chart.querySelectorAll(".time-tick")) one.setAttribute("y", height - 6);
    group.replaceChildren(...shown.map(drawn));
    if (moment !== null) group.appendChild(made("line", { x1: x(moment), x2: x(moment), y1: 0, y2: base, class: "moment" }));
    chart.querySelector(".row-names").replaceChildren(...shown.map((row, index) => made(
      "text", { x: plot.left - 6, y: TOP + index * ROW + 10, class: lost(row) ? "value-tick lost" : "value-tick" }, data.id[row])));
    const part = rows.length > PER_PAGE ? `, rows ${first + 1} to ${first + shown.length}` : "";
    now.textContent = sentence + part;
    figure.querySelector("[data-do=back]").disabled = first === 0;
    figure.querySelector("[data-do=on]").disabled = first + PER_PAGE >= rows.length;
    figure.querySelector("[data-do=zoom]").disabled = rows.length === 0;
    tabulate(shown);
  }

  function tabulate(shown) {
    const grid = document.createElement("table"), head = document.createElement("tr"), body = document.createElement("tbody");
    const heads = ["request", "state", "prefill", "decode", "input tokens", "attempts", "sent at", "queue", "prefill", "KV not hidden", "TTFT", "whole"];
    heads.forEach((text, index) => head.appendChild(html("th", text, { scope: "col", ...(index > 3 && { class: "n" }) })));
    for (const row of shown) {
      const line = document.createElement("tr"), name = (which) => data[which][row] === null ? "–" : data.names[data[which][row]];
      const state = data.states[data.state[row]] + (data.cause[row] === null ? "" : `: ${name("cause")}`);
      line.appendChild(html("th", data.id[row], { scope: "row" }));
      for (const text of [state, name("prefill"), name("decode")]) line.appendChild(html("td", text));
      for (const text of [data.tokens[row].toLocaleString("en"), data.attempts[row], seconds(sent[row]), seconds(between(row, "queued", "start")),
        seconds(between(row, "start", "end")), seconds(between(row, "end", "kv")), seconds(data.first[row]), seconds(data.done[row])]) {
        line.appendChild(html("td", text, { class: "n" }));
      }
      body.appendChild(line);
    }
    const top = document.createElement("thead");
    top.appendChild(head);
    grid.append(top, body);
    table.replaceChildren(grid);
  }

  function upTo(sorted, ticks) {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= ticks) low = middle + 1; else high = middle;
    }
    return low;
  }

  function open(t, id = null) {
    const ticks = t / unit, found = [];
    for (let row = 0; row < count; row++) {
      const there = sent[row] <= ticks && (data.done[row] === null || sent[row] + data.done[row] >= ticks);
      // The one that was asked for may have ended at this very moment, within what was rounded.
      if (there || data.id[row] === id) found.push(row);
    }
    const under = all ? Math.max(upTo(all.sent, ticks) - upTo(all.ended, ticks), found.length) : found.length;
    const which = all ? `${found.length} of ${under}` : String(found.length);
    [rows, first, moment, picked] = [found, 0, t, id];
    const where = id === null ? -1 : found.findIndex((row) => data.id[row] === id);
    if (where >= 0) first = where - where % PER_PAGE;
    sentence = `${which} ${which === "1" ? "request" : "requests"} under way at ${t.toFixed(2)} s`;
    if (!figure.classList.contains("open")) from = document.activeElement;
    figure.classList.add("open");
    draw();
    chart.closest(".panel").scrollTop = 0;
    figure.dispatchEvent(new Event("opened"));
  }

  function list(found, text) {
    [rows, first, moment, picked, sentence] = [found, 0, null, null, text];
    draw();
  }

  function slowest() {
    const answered = [...sent.keys()].filter((row) => data.first[row] !== null);
    answered.sort((one, other) => data.first[other] - data.first[one]);
    const found = answered.slice(0, SLOWEST).sort((one, other) => one - other);
    list(found, `the ${found.length} slowest to their first token`);
  }

  function close() {
    const was = figure.classList.contains("open");
    figure.classList.remove("open");
    if (was && from && from.focus) from.focus();
    return was;
  }

  const troubled = [...sent.keys()].filter((row) => lost(row) || data.attempts[row] > 1);
  const deeds = {
    slowest,
    lost: () => list(troubled, `${troubled.length} that failed or ${troubled.length === 1 ? "was" : "were"} tried again`),
    back: () => { first = Math.max(0, first - PER_PAGE); draw(); },
    on: () => { first += PER_PAGE; draw(); },
    zoom: () => {
      const shown = rows.slice(first, first + PER_PAGE);
      const to = shown.map((row) => data.done[row] === null ? span[1] : (sent[row] + data.done[row]) * unit);
      document.dispatchEvent(new CustomEvent("span", { detail: [sent[shown[0]] * unit, Math.max(...to)] }));
    },
    close,
  };
  for (const button of figure.querySelectorAll("button")) button.addEventListener("click", deeds[button.dataset.do]);
  figure.querySelector("[data-do=lost]").hidden = troubled.length === 0;
  document.addEventListener("moment", (event) => open(event.detail));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && close()) event.stopImmediatePropagation();
  }, true);
  for (const name of document.querySelectorAll(".request[data-at]")) {
    const button = html("button", name.textContent, { type: "button", class: "request", "aria-label": `show request ${name.textContent}` });
    button.addEventListener("click", () => open(Number(name.dataset.at), Number(name.dataset.id)));
    name.replaceWith(button);
  }
  slowest();
})();
