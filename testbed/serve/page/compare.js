// Two runs overlaid, and what differs.

import { get } from "./api.js";
import { Chart, Events, Group } from "./charts.js";
import { chip, h, link, problems, table } from "./dom.js";
import { number, quantity } from "./numbers.js";

const UNITS = { Gbps: ["bps", 1e9], GB: ["bytes", 1e9], MB: ["bytes", 1e6], "MB/s": ["bytes", 1e6], "%": ["%", 0.01], tokens: ["tokens", 1], s: ["s", 1] };
const COLOURS = { baseline: "orange", candidate: "blue" };

export async function compare([first, second]) {
  const found = await get("comparison", { first, second });
  const group = new Group(), happened = new Events();
  happened.set(found.events);
  const charts = found.charts.map((one) => {
    const [unit, factor] = UNITS[one.unit] ?? ["", 1];
    const chart = new Chart(one.title, unit, one.curves.map((curve) => ({
      label: curve.label, colour: COLOURS[curve.label] ?? "grey", dashed: curve.dashed,
    })));
    const element = group.add(chart);
    chart.set(found.times_s, one.curves.map((curve) => curve.values.map((value) => value === null ? null : value * factor)),
      { marks: found.events });
    return element;
  });
  const rows = found.rows.filter((one) => one.first !== 0 || one.second !== 0).map((one) => [
    one.name, quantity(one.first, one.unit), quantity(one.second, one.unit),
    one.difference === null ? "–" : `${one.difference > 0 ? "+" : ""}${quantity(one.difference, one.unit)}`,
    one.relative === null ? "–" : `${one.relative > 0 ? "+" : ""}${number(one.relative * 100, 2)} %`,
    h("span", { class: one.judged }, one.judged === "shown" ? "" : one.judged),
  ]);
  const right = (text) => ({ text, number: true });
  return h("div", {},
    h("h1", {}, `${first} and ${second}`),
    h("div", { class: "row" }, chip(found.status), h("span", {}, found.note),
      h("span", { class: "row end" }, link(`#/compare/${second}/${first}`, "Exchange"))),
    h("p", { class: "soft" }, "Baseline ", link(`#/run/${first}`, first), ", dashed; candidate ", link(`#/run/${second}`, second),
      ". One run each: the differences are those of these two runs; ", h("code", {}, "testbed.compare"), " takes many seeds."),
    found.unknown.length ? problems(found.unknown.map((reason) => ({ where: "not to be relied on", found: reason })), { kind: "warn" }) : null,
    found.plan_differences.length ? h("ul", { class: "soft" }, found.plan_differences.map((text) => h("li", {}, text))) : null,
    h("h2", {}, "Over virtual time"), h("div", { class: "charts" }, charts), happened.element,
    h("h2", {}, "Values"),
    table("Values of both runs", ["metric", right("baseline"), right("candidate"), right("difference"), right(""), "judged"], rows));
}
