// The history: search, pages, and two runs picked for a comparison.

import { get } from "./api.js";
import { chip, h, link, say, table } from "./dom.js";
import { moment, number, seconds } from "./numbers.js";

const LIMIT = 50, PAUSE_MS = 200, LOOK_MS = 3000;
const picked = [];

export async function runs(_, params, left) {
  let offset = Number(params.get("offset") ?? 0), waiting = null, timer = null, shown = "";
  const query = h("input", { type: "search", "aria-label": "Search", placeholder: "name, question, note, digest, seed, replaced values" });
  query.value = params.get("query") ?? "";
  const state = h("select", {}, ["", "RUNNING", "PASS", "FAIL", "UNKNOWN"].map((one) =>
    h("option", { value: one }, one || "any verdict")));
  state.value = params.get("state") ?? "";
  const list = h("div", {}), pages = h("div", { class: "row" }), choice = h("span", {});

  const choose = () => {
    choice.replaceChildren(picked.length === 2
      ? link(`#/compare/${picked[0]}/${picked[1]}`, `Compare ${picked[0]} with ${picked[1]}`)
      : picked.length === 1 ? `${picked[0]} is the baseline: tick another` : "Tick two runs to compare them");
  };
  const pick = (name, box) => {
    const at = picked.indexOf(name);
    if (at >= 0) picked.splice(at, 1); else picked.push(name);
    if (picked.length > 2) {
      const dropped = picked.shift();
      list.querySelectorAll("input[type=checkbox]").forEach((one) => { if (one.value === dropped) one.checked = false; });
    }
    box.checked = picked.includes(name);
    choose();
  };
  const draw = (found) => {
    const rows = found.runs.map((one) => {
      const box = h("input", { type: "checkbox", value: one.directory, "aria-label": `Compare ${one.directory}` });
      box.checked = picked.includes(one.directory);
      box.addEventListener("change", () => pick(one.directory, box));
      return [box, h("div", {}, link(`#/run/${one.directory}`, one.directory),
        one.changed ? h("div", { class: "soft" }, `with ${one.changed}`) : null), chip(one.state),
        h("span", { class: "soft" }, one.note), moment(one.started_s), seconds(one.virtual_s),
        one.wall_s ? `${number(one.virtual_s / one.wall_s)} x` : "–", h("code", {}, one.digest.slice(0, 12))];
    });
    list.replaceChildren(table("Runs, newest first", ["", "run", "verdict", "finding", "started",
      { text: "virtual", number: true }, { text: "speed", number: true }, "record"], rows));
    const last = Math.min(offset + LIMIT, found.total);
    const turn = (by, text, possible) => h("button", {
      type: "button", disabled: !possible, onclick: () => { offset += by; load(true); },
    }, text);
    pages.replaceChildren(h("span", { class: "soft" }, found.total ? `${offset + 1} to ${last} of ${found.total}` : "no runs"),
      turn(-LIMIT, "Newer", offset > 0), turn(LIMIT, "Older", last < found.total));
  };
  const load = async (speak) => {
    const found = await get("runs", { query: query.value, state: state.value, limit: LIMIT, offset });
    const text = JSON.stringify(found);
    // What has not changed is left alone: a focus inside stays where it is.
    if (text !== shown) draw(found);
    shown = text;
    if (speak) say(`${found.total} runs`);
  };
  const search = () => { clearTimeout(waiting); offset = 0; waiting = setTimeout(() => load(true), PAUSE_MS); };
  query.addEventListener("input", search);
  state.addEventListener("change", search);
  const again = () => { timer = setTimeout(async () => {
    if (!document.hidden) await load(false).catch(() => null);
    again();
  }, LOOK_MS); };
  left.push(() => { clearTimeout(timer); clearTimeout(waiting); timer = -1; });
  await load(false);
  choose();
  again();
  return h("div", {}, h("h1", {}, "Runs"),
    h("div", { class: "row", role: "search" }, query, h("label", {}, "Verdict", state), h("span", { class: "end" }, choice)),
    list, pages);
}
