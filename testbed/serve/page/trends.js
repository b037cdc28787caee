// A metric over the runs of one scenario, oldest first.

import { get } from "./api.js";
import { Chart, Group } from "./charts.js";
import { chip, h, link, table } from "./dom.js";
import { moment, quantity } from "./numbers.js";

const COLOURS = { PASS: "green", FAIL: "red", UNKNOWN: "grey", RUNNING: "blue" };
const MOST_TICKS = 10;

export async function trends([name], params) {
  if (name === undefined) return choice();
  const metrics = await get("trends", { name });
  const metric = params.get("metric") ?? metrics[0]?.name;
  const select = h("select", {}, metrics.map((one) => h("option", { value: one.name }, `${one.name} (${one.runs})`)));
  if (metric) select.value = metric;
  select.addEventListener("change", () => {
    location.hash = `#/trends/${encodeURIComponent(name)}?${new URLSearchParams({ metric: select.value })}`;
  });
  const parts = [h("h1", {}, `Trends of ${name}`),
    h("div", { class: "row" }, h("label", {}, "Metric", select), link("#/trends", "another scenario"))];
  if (!metric) return h("div", {}, ...parts, h("p", {}, "There is no judged run of it yet."));
  const { points } = await get("trend", { name, metric });
  const unit = metrics.find((one) => one.name === metric)?.unit ?? "";
  const chart = new Chart(metric, unit, [
    { label: "value", colour: "grey", dots: true, colours: (index) => COLOURS[points[index].state] },
  ]);
  const element = new Group().add(chart);
  const values = points.map((one) => one.value), every = Math.ceil(points.length / MOST_TICKS);
  chart.set(points.map((_, index) => index + 0.5), [values], {
    to: points.length,
    ticks: points.map((one, index) => [index + 0.5, moment(one.started_s).slice(5)]).filter((_, index) => index % every === 0),
  });
  const rows = points.map((one) => [h("div", {}, link(`#/run/${one.directory}`, one.directory),
    one.changed ? h("div", { class: "soft" }, `with ${one.changed}`) : null), chip(one.state), moment(one.started_s),
    String(one.seed), String(one.scale), quantity(one.value, unit)]).reverse();
  return h("div", {}, ...parts, h("p", { class: "soft" }, "Dots are green for PASS, red for FAIL, grey for UNKNOWN; the table says it in words."),
    h("div", { class: "one" }, element), table(`${metric}, newest first`, ["run", "verdict", "started", { text: "seed", number: true },
      { text: "scale", number: true }, { text: "value", number: true }], rows));
}

async function choice() {
  const named = (await get("scenarios")).filter((one) => one.last).map((one) => [one.name, one]);
  const found = [...new Map(named).values()]; // two files may bear one name
  return h("div", {}, h("h1", {}, "Trends"),
    found.length ? h("ul", {}, found.map((one) => h("li", {}, link(`#/trends/${encodeURIComponent(one.name)}`, one.name),
      h("span", { class: "soft" }, ` ${one.question}`)))) : h("p", {}, "No scenario has been run yet."));
}
