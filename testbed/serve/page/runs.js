// The history: search, pages, and two runs picked for a comparison.

import { Problems, get } from "./api.js";
import { chip, h, link, problems, say, table } from "./dom.js";
import { moment, number, seconds } from "./numbers.js";

const LIMIT = 50, PAUSE_MS = 200, LOOK_MS = 3000;
const picked = [];

export async function runs(_, params, left) {
  let offset = Number(params.get("offset") ?? 0), waiting = null, timer = null, shown = "", asking = 0, gone = false;
  const query = h("input", { type: "search", "aria-label": "Search", placeholder: "name, question, note, digest, seed, replaced values" });
  query.value = params.get("query") ?? "";
  const state = h("select", {}, ["", "RUNNING", "PASS", "FAIL", "UNKNOWN"].map((one) =>
    h("option", { value: one }, one || "any verdict")));
  state.value = params.get("state") ?? "";
  const list = h("div", {}), choice = h("span", {}), said = h("div", {});
  const turn = (by, text) => h("button", { type: "button", onclick: () => { offset = Math.max(0, offset + by); load(true); } }, text);
  const where = h("span", { class: "soft" }), newer = turn(-LIMIT, "Newer"), older = turn(LIMIT, "Older");

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
        h("span", { class: "soft" }, one.note), h("span", { class: "whole" }, moment(one.started_s)),
        one.kernel ? `${one.kernel}, ${one.clock}` : "–", seconds(one.virtual_s),
        one.wall_s ? `${number(one.virtual_s / one.wall_s)} x` : "–", h("code", {}, one.digest.slice(0, 12))];
    });
    const focused = document.activeElement, inside = list.contains(focused);
    list.replaceChildren(table("Runs, newest first", ["", "run", "verdict", "finding", "started",
      "kernel", { text: "virtual", number: true }, { text: "speed", number: true }, "record"], rows));
    const same = (one) => one.value === focused.value && one.getAttribute("href") === focused.getAttribute("href");
    if (inside) [...list.querySelectorAll("a, input")].find(same)?.focus({ preventScroll: true });
    const last = Math.min(offset + LIMIT, found.total);
    where.textContent = found.total ? `${offset + 1} to ${last} of ${found.total}` : "no runs";
    newer.disabled = offset <= 0;
    older.disabled = last >= found.total;
    if (focused?.disabled) (newer.disabled ? older : newer).focus();
  };
  const ask = async (speak) => {
    const mine = ++asking;
    const found = await get("runs", { query: query.value, state: state.value, limit: LIMIT, offset });
    if (mine !== asking) return; // something else has been asked since
    const text = JSON.stringify(found);
    // What has not changed is left alone: somebody may be reading it.
    if (text !== shown) draw(found);
    shown = text;
    said.replaceChildren();
    if (speak) say(`${found.total} runs`);
  };
  const load = (speak) => ask(speak).catch((error) => {
    if (!(error instanceof Problems)) throw error;
    const shows = problems(error.list);
    if (said.textContent !== shows.textContent) said.replaceChildren(shows); // read out once, and not every time
  });
  const search = () => { clearTimeout(waiting); offset = 0; waiting = setTimeout(() => load(true), PAUSE_MS); };
  query.addEventListener("input", search);
  state.addEventListener("change", search);
  const again = () => { timer = setTimeout(async () => {
    if (!document.hidden) await load(false);
    if (!gone) again();
  }, LOOK_MS); };
  left.push(() => { gone = true; asking++; clearTimeout(timer); clearTimeout(waiting); });
  await ask(false);
  choose();
  if (!gone) again();
  return h("div", {}, h("h1", {}, "Runs"),
    h("div", { class: "row", role: "search" }, query, h("label", {}, "Verdict", state), h("span", { class: "end" }, choice)),
    said, list, h("div", { class: "row" }, where, newer, older));
}
