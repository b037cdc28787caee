// A scenario's text with its problems at the lines; checked while one types, run as a draft.

import { get, post } from "./api.js";
import { h, link, problems, say } from "./dom.js";
import { number } from "./numbers.js";
import { starter } from "./start.js";

const LINE_PX = 20, PAUSE_MS = 500;
const numbers = (from, to) => Array.from({ length: to - from }, (_unused, index) => from + index).join("\n");

export async function editor([path], _, left) {
  const { text } = await get(`scenarios/${path.split("/").map(encodeURIComponent).join("/")}`);
  const gutter = h("div", { class: "gutter", "aria-hidden": "true" });
  const area = h("textarea", { spellcheck: "false", wrap: "off", "aria-label": `Text of ${path}`, "aria-describedby": "found" });
  area.value = text;
  const unchanged = area.value; // its lines end as those of what is typed, whatever the file has
  const found = h("div", { id: "found" });
  const seed = h("input", { type: "number", min: 0, placeholder: "the file's", size: 8 });
  const scale = h("input", { type: "number", min: 0.0001, max: 1, step: "any", placeholder: "the file's", size: 8 });
  let bad = new Set(), lines = 0, waiting = null, asked = null;

  const body = () => ({
    scenario: path,
    text: area.value === unchanged ? null : area.value,
    seed: seed.value === "" ? null : seed.value, // as text: numbers here are exact up to 2^53 only
    scale: scale.value === "" ? null : Number(scale.value),
  });
  const number_lines = () => {
    lines = area.value.split("\n").length;
    // Lines between problems are one element: a hundred thousand of these take a browser minutes.
    const rows = [];
    let from = 1;
    for (const line of [...bad].filter((one) => one <= lines).sort((a, b) => a - b)) {
      if (line > from) rows.push(h("div", {}, numbers(from, line)));
      rows.push(h("div", { class: "bad" }, String(line)));
      from = line + 1;
    }
    gutter.replaceChildren(...rows, h("div", {}, `${numbers(from, lines + 1)}\n \n `));
    gutter.scrollTop = area.scrollTop;
  };
  const go = (line) => {
    const starts = area.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    area.focus();
    area.setSelectionRange(starts, starts + (area.value.split("\n")[line - 1] ?? "").length);
    area.scrollTop = Math.max(0, (line - 6) * LINE_PX);
  };
  const show = (list) => {
    bad = new Set(list.map((one) => one.line).filter(Boolean));
    number_lines();
    found.replaceChildren(problems(list, { onLine: go }));
    say(`${list.length} ${list.length === 1 ? "problem" : "problems"}`);
  };
  const check = async () => {
    asked?.abort(); // the server makes no check that nobody waits for
    const mine = asked = new AbortController();
    let answer;
    try {
      answer = await post("check", { ...body(), text: area.value }, mine.signal);
    } catch (error) {
      if (!mine.signal.aborted) show(error.list ?? []);
      return;
    }
    if (mine.signal.aborted) return;
    if (answer.problems.length) { show(answer.problems); return; }
    bad = new Set();
    number_lines();
    const plan = answer.plan;
    found.replaceChildren(
      h("p", {}, `Nothing is wrong with it. ${number(plan.duration_s)} s, ${plan.requests} requests, seed ${plan.seed}, ` +
        `scale ${plan.scale}, ${plan.expectations.length} expectations.`),
      answer.warnings.length ? problems(answer.warnings.map((warning) => ({ where: "warning", found: warning })), { kind: "warn" }) : "");
    say("Nothing is wrong with it");
  };
  const later = () => { clearTimeout(waiting); waiting = setTimeout(check, PAUSE_MS); };
  area.addEventListener("input", () => { if (area.value.split("\n").length !== lines) number_lines(); later(); });
  area.addEventListener("scroll", () => { gutter.scrollTop = area.scrollTop; });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) check();
  });
  [seed, scale].forEach((one) => one.addEventListener("input", later));
  left.push(() => { clearTimeout(waiting); asked?.abort(); });
  number_lines();
  check();

  const said = h("div", {});
  return h("div", {},
    h("h1", {}, path),
    h("div", { class: "row" },
      starter(body, said, `Run ${path} as it stands here`, { onProblems: show }),
      h("button", { type: "button", onclick: check, title: "Ctrl+Enter" }, "Check"),
      h("label", {}, "Seed", seed), h("label", {}, "Scale", scale),
      h("span", { class: "soft end" }, "A changed text runs as a draft; the file stays as it is.")),
    said, found,
    h("div", { class: "editor" }, gutter, area),
    h("p", {}, link("#/scenarios", "all scenarios")));
}
