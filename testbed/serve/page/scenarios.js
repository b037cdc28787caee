// Every scenario with its last verdict, and a button to run it.

import { get } from "./api.js";
import { chip, h, link, table } from "./dom.js";
import { moment } from "./numbers.js";
import { starter } from "./start.js";

export async function scenarios() {
  const found = await get("scenarios");
  const said = h("div", {});
  const rows = found.map((one) => [
    h("div", {}, link(`#/edit/${encodeURIComponent(one.path)}`, one.path),
      one.control ? h("span", { class: "soft" }, " control: must not PASS") : null,
      h("div", { class: "soft" }, one.question)),
    one.last
      ? h("div", {}, link(`#/run/${one.last.directory}`, chip(one.last.state)),
        h("div", { class: "soft" }, `${moment(one.last.started_s)}${one.last.edited && !one.last.changed.startsWith("text=") ? ", edited since" : ""}`),
        one.last.changed ? h("div", { class: "soft" }, `with ${one.last.changed}`) : null)
      : h("span", { class: "soft" }, "never run"),
    h("div", { class: "row" },
      starter({ scenario: one.path }, said, `Run ${one.path}`),
      one.last ? link(`#/trends/${encodeURIComponent(one.name)}`, "trends") : null),
  ]);
  return h("div", {},
    h("h1", {}, "Scenarios"),
    h("p", { class: "soft" }, "Each asks one question of the system under test. Open one to read, change and check it."),
    said,
    table("Scenarios with their last verdicts", ["scenario", "last verdict", "run"], rows));
}
