// A button that starts a run and goes to it as soon as it has a directory.

import { Problems, get, post } from "./api.js";
import { h, problems, say } from "./dom.js";

const POLL_MS = 250;
const starts = new Map(); // by run: the number of its start, which knows what was said by one that left nothing

// asked: the body for POST /runs, or a function that makes it; said: where problems are shown
export function starter(asked, said, label, { onProblems = null } = {}) {
  const button = h("button", { type: "button", class: "main", "aria-label": label }, "Run");
  button.addEventListener("click", async () => {
    const from = location.hash;
    button.disabled = true;
    button.textContent = "starting";
    said.replaceChildren();
    try {
      const { start } = await post("runs", typeof asked === "function" ? asked() : asked);
      const run = await directoryOf(start);
      starts.set(run, start);
      say(`${run} is under way`);
      if (location.hash === from) location.hash = `#/run/${run}`; // who has gone elsewhere meanwhile stays there
    } catch (error) {
      if (!(error instanceof Problems)) throw error;
      onProblems ? onProblems(error.list) : said.replaceChildren(problems(error.list));
      say("The run was not started");
    }
    button.disabled = false;
    button.textContent = "Run";
  });
  return button;
}

async function directoryOf(start) {
  for (;;) {
    const found = await get(`starts/${start}`);
    if (found.run) return found.run;
    if (found.exit_code !== null) throw ended(found);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

// Why a run cannot be had: what its start said when it took its directory away, or else the error itself.
export async function why(run, error) {
  if (error.status !== 404 || !starts.has(run)) return error;
  const found = await get(`starts/${starts.get(run)}`).catch(() => null);
  return found && !found.run && found.exit_code !== null ? ended(found) : error;
}

function ended({ exit_code: code, said }) {
  const silent = { found: "it said nothing", next_step: "is there room left where runs go?" };
  return new Problems(0, [{ where: `exit code ${code}`, ...(said ? { found: said } : silent) }]);
}
