// One run: live charts while it goes on, verdict and files when it has ended.

import { eventsOf, fileOf, get, post } from "./api.js";
import { Chart, Events, Group } from "./charts.js";
import { chip, h, link, problems, say, table } from "./dom.js";
import { moment, number, quantity, seconds } from "./numbers.js";
import { why } from "./start.js";

const CHARTS = [
  ["Link A → B", "bps", [["capacity_bps", "capacity", "orange", { dashed: true }], ["goodput_bps", "throughput", "blue", { area: true }]]],
  ["Time to first token", "s", [["ttft_p50_s", "P50", "blue", {}], ["ttft_p90_s", "P90, last 15 s", "purple", { dashed: true }]]],
  ["Threshold", "tokens", [["threshold_tokens", "threshold", "green", {}]], { fromZero: false }],
  ["Offloaded share of requests", "%", [["offloaded_ratio", "prefilled in A, last 10 s", "blue", { area: true }]], { top: 1 }],
  ["Queue in the link's buffer", "bytes", [["queue_bytes", "most", "purple", { area: true }]]],
  ["Sent again by TCP", "bps", [["retrans_bps", "all sockets", "red", { area: true }]]],
  ["Requests in each state", "", [["queued_a", "waiting in A", "orange", {}], ["queued_b", "waiting in B", "blue", { dashed: true }], ["in_decode", "in decode", "green", {}]]],
  ["Requests that ended, per second", "", [["completed", "completed", "green", { area: true }], ["failed", "failed", "red", { dashed: true }]]],
];

export async function run([name], _, left) {
  let detail = await get(`runs/${encodeURIComponent(name)}`).catch(async (error) => { throw await why(name, error); });
  const head = h("div", {}), body = h("div", {}), numbers = h("dl", { class: "numbers" });
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Virtual time" });
  const group = new Group(), happened = new Events(), said = h("div", {});
  const charts = CHARTS.map(([title, unit, curves, options]) => ({
    names: curves.map(([signal]) => signal),
    chart: new Chart(title, unit, curves.map(([, label, colour, more]) => ({ label, colour, ...more })), options),
  }));
  const shown = h("div", { class: "charts" }, charts.map((one) => group.add(one.chart)));
  let state = null;

  const draw = () => {
    const xs = Array.from({ length: state.signals.capacity_bps.length }, (_unused, index) => (index + 1) * state.stretch_s);
    for (const { names, chart } of charts) {
      const values = names.map((signal) => state.signals[signal]);
      chart.element.hidden = values.every((column) => column.every((value) => value === null));
      chart.set(xs, values, { to: detail.run.state === "RUNNING" ? state.now.duration_s : 0, marks: state.marks });
    }
    happened.set(state.marks);
    const { virtual_s: virtual, duration_s: duration, speed, stage } = state.now;
    bar.value = Math.min(1, virtual / (duration || 1));
    const running = detail.run.state === "RUNNING";
    facts(numbers, [
      ["stage", running ? stage || "starting" : "ended"], ["virtual time", !running ? seconds(virtual)
        : virtual > duration ? `${number(virtual, 4)} s, last requests` : `${number(virtual, 4)} of ${number(duration)} s`],
      ["speed", running ? (speed === null ? "–" : `${number(speed)} x real time`) : detail.run.wall_s ? `${number(detail.run.virtual_s / detail.run.wall_s)} x real time` : "–"],
      ["seed, scale", `${detail.run.seed}, ${detail.run.scale}`], ...(detail.run.changed ? [["replaced", detail.run.changed]] : []), ["started", moment(detail.run.started_s)],
    ]);
  };
  const header = () => {
    const one = detail.run;
    const stop = h("button", { type: "button" }, "Stop");
    stop.addEventListener("click", async () => {
      stop.disabled = true;
      try {
        await post(`runs/${encodeURIComponent(name)}/stop`);
      } catch (error) {
        stop.disabled = false;
        said.replaceChildren(problems(error.list));
        return;
      }
      say("The run was told to end");
      setTimeout(() => { stop.disabled = false; stop.textContent = "Stop now"; }, 3000);
    });
    head.replaceChildren(
      h("div", { class: "row" }, h("h1", {}, name), chip(one.state), h("span", { class: "soft" }, one.note),
        h("span", { class: "row end" }, one.state === "RUNNING" ? stop : null,
          detail.files.some((file) => file.name === "report.html") ? h("a", { href: fileOf(name, "report.html"), target: "_blank", rel: "noopener" }, "Report") : null,
          link(`#/trends/${encodeURIComponent(one.name)}`, "Trends"))),
      h("p", { class: "soft" }, one.question));
    bar.hidden = one.state !== "RUNNING";
  };
  const ending = () => body.replaceChildren(...(detail.run.state === "RUNNING" ? [] : verdict(detail, name)));
  header();
  ending();

  const events = eventsOf(name);
  left.push(() => events.close());
  events.addEventListener("whole", (event) => { state = JSON.parse(event.data); draw(); });
  events.addEventListener("changes", (event) => {
    if (state === null) return;
    const { numbers: places, signals, marks, now } = JSON.parse(event.data);
    Object.assign(state, { marks, now });
    for (const [signal, values] of Object.entries(signals)) places.forEach((place, index) => { state.signals[signal][place] = values[index]; });
    draw();
  });
  let lost = false;
  events.addEventListener("open", () => {
    if (lost) said.replaceChildren();
    lost = false;
  });
  events.addEventListener("error", () => {
    if (lost && events.readyState !== EventSource.CLOSED) return; // it was said when the first attempt failed
    lost = true;
    said.replaceChildren(problems([events.readyState === EventSource.CLOSED
      ? { where: "live values", found: "the server sends none", next_step: "reload the page" }
      : { where: "live values", found: "the server does not answer; what stands here is the last that it sent",
        next_step: "it is asked again every few seconds" }]));
  });
  events.addEventListener("end", async () => {
    events.close();
    try {
      detail = await get(`runs/${encodeURIComponent(name)}`);
    } catch (error) {
      head.replaceChildren(h("h1", {}, name));
      bar.hidden = true;
      said.replaceChildren(problems((await why(name, error)).list));
      return;
    }
    header();
    ending();
    if (state !== null) draw();
    say(`${name} has ended: ${detail.run.state}, ${detail.run.note}`);
  });
  return h("div", {}, head, said, bar, numbers, body, h("h2", {}, "Over virtual time"), shown, happened.element);
}

function facts(element, rows) {
  const text = JSON.stringify(rows);
  if (element.dataset.shown === text) return;
  element.dataset.shown = text;
  element.replaceChildren(...rows.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
}

function verdict(detail, name) {
  const rows = detail.results.map((one) => [chip(one.status), one.name, one.sentence,
    quantity(one.measured, one.unit), quantity(one.margin, one.unit)]);
  const metrics = detail.metrics.filter((one) => !one.expected).map((one) => [one.name, quantity(one.value, one.unit)]);
  return [
    detail.trust.length ? problems(detail.trust.map((reason) => ({ where: "not trusted", found: reason })), { kind: "warn" }) : null,
    rows.length ? h("h2", {}, "Expectations") : null,
    rows.length ? table("Expectations", ["", "expectation", "finding", { text: "measured", number: true }, { text: "margin", number: true }], rows) : null,
    metrics.length ? h("details", {}, h("summary", {}, `${metrics.length} metrics of the whole run`),
      table("Metrics", ["metric", { text: "value", number: true }], metrics)) : null,
    h("details", {}, h("summary", {}, `${detail.files.length} files`), h("ul", { class: "files" }, detail.files.map((file) =>
      h("li", {}, h("a", { href: fileOf(name, file.name) }, file.name), h("span", { class: "soft" }, ` ${quantity(file.size_bytes, "bytes")}`))))),
    detail.run.wall_s ? h("p", { class: "soft" }, `${seconds(detail.run.virtual_s)} virtual in ${seconds(detail.run.wall_s)}; record `,
      h("code", {}, detail.run.digest.slice(0, 16)), `; kernel ${detail.run.kernel}, ${detail.run.clock} clock`) : null,
  ].filter(Boolean);
}
