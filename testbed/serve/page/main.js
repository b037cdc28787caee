// Which view the address asks for. A view is a function (parts of the address, parameters) that returns an
// element, and may leave a function in `leaving` that is called before the next one.

import { Problems, get, post } from "./api.js";
import { h, problems, say } from "./dom.js";
import { compare } from "./compare.js";
import { editor } from "./editor.js";
import { run } from "./run.js";
import { runs } from "./runs.js";
import { scenarios } from "./scenarios.js";
import { trends } from "./trends.js";

const VIEWS = { scenarios, edit: editor, runs, run, compare, trends };
const OF_ONE = ["edit", "run"]; // views that need to know of what
const LOOK_MS = 3000;
let leaving = [];
let turn = 0;

async function show() {
  const mine = ++turn;
  const [path, search = ""] = (location.hash.slice(2) || "scenarios").split("?");
  const [name, ...parts] = path.split("/").map(decoded);
  leaving.forEach((leave) => leave());
  leaving = [];
  const view = viewOf(name, parts), left = [];
  let element;
  try {
    element = await view(parts, new URLSearchParams(search), left);
  } catch (error) {
    element = trouble(error);
  }
  if (mine !== turn) {
    left.forEach((leave) => leave());
    return;
  }
  leaving = left;
  const main = document.getElementById("main");
  main.replaceChildren(element);
  const title = main.querySelector("h1")?.textContent ?? "Testbed";
  document.title = title === "Testbed" ? title : `${title} · Testbed`;
  say(title);
  for (const one of document.querySelectorAll(".bar nav a")) {
    const here = one.getAttribute("href") === `#/${name}` || (name === "edit" && one.hash === "#/scenarios") ||
      (["run", "compare"].includes(name) && one.hash === "#/runs");
    here ? one.setAttribute("aria-current", "page") : one.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
}

function viewOf(name, parts) {
  const incomplete = OF_ONE.includes(name) && !parts[0];
  return Object.hasOwn(VIEWS, name) && !incomplete ? VIEWS[name] : scenarios;
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; } // a lone % that somebody typed
}

function trouble(error) {
  if (!(error instanceof Problems)) throw error;
  if (error.status !== 401) return h("div", {}, h("h1", {}, "That did not work"), problems(error.list));
  const token = h("input", { type: "password", autocomplete: "current-password", required: true });
  const said = h("div", {});
  const log = async (event) => {
    event.preventDefault();
    try {
      await post("session", { token: token.value });
      show();
    } catch (wrong) {
      said.replaceChildren(problems(wrong.list));
    }
  };
  return h("form", { class: "card", onsubmit: log },
    h("h1", {}, "This server asks for its token"),
    h("div", { class: "row" }, h("label", {}, "Token", token), h("button", { class: "main" }, "Enter")), said);
}

async function look() {
  if (!document.hidden) {
    try {
      const { total } = await get("runs", { state: "RUNNING", limit: 1 });
      document.getElementById("under-way").textContent = total ? `${total} under way` : "";
    } catch { /* the view that is open says what is wrong */ }
  }
  setTimeout(look, LOOK_MS);
}

window.addEventListener("hashchange", show);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
show();
look();
