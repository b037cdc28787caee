// A button that starts a run and goes to it as soon as it has a directory.

import { Problems, get, post } from "./api.js";
import { h, problems, say } from "./dom.js";

const POLL_MS = 250;

// asked: the body for POST /runs, or a function that makes it; said: where problems are shown
export function starter(asked, said, label, { onProblems = null } = {}) {
  const button = h("button", { type: "button", class: "main", "aria-label": label }, "Run");
  button.addEventListener("click", async () => {
    button.disabled = true;
    button.textContent = "starting";
    said.replaceChildren();
    try {
      const { start } = await post("runs", typeof asked === "function" ? asked() : asked);
      location.hash = `#/run/${await directoryOf(start)}`;
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
    if (found.exit_code !== null) {
      const silent = { found: "it said nothing", next_step: "is there room left where runs go?" };
      throw new Problems(0, [{ where: `exit code ${found.exit_code}`, ...(found.said ? { found: found.said } : silent) }]);
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
