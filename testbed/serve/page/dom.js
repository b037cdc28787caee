// Elements from data. Text is always text: nothing that comes from a scenario or a run is read as markup.

export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function say(text) {
  document.getElementById("status").textContent = text;
}

export function chip(state) {
  return h("span", { class: `chip ${state}` }, state);
}

export function link(to, ...children) {
  return h("a", { href: to }, ...children);
}

export function table(caption, heads, rows) {
  const cells = (row) => row.map((cell, index) => h("td", { class: heads[index].number ? "n" : null }, cell));
  return h("div", { class: "card scroll" },
    h("table", {},
      h("caption", { class: "sr" }, caption),
      h("thead", {}, h("tr", {}, heads.map((head) => {
        const text = head.text ?? head;
        // A column without a name has no header: an empty one would be read aloud as one.
        return text ? h("th", { scope: "col", class: head.number ? "n" : null }, text) : h("td", {});
      }))),
      h("tbody", {}, rows.map((row) => h("tr", {}, cells(row))))));
}

export function problems(list, { onLine = null, kind = "" } = {}) {
  const line = (one) => one.line && onLine
    ? h("button", { type: "button", onclick: () => onLine(one.line) }, `line ${one.line}`) : null;
  return h("div", { class: `problems ${kind}`, role: kind ? null : "alert" },
    h("ul", {}, list.map((one) => h("li", {},
      line(one), line(one) ? " " : null, h("code", {}, one.where), ": ",
      one.found.includes("\n") ? h("pre", {}, one.found) : one.found,
      one.allowed ? h("div", { class: "soft" }, `allowed: ${one.allowed}`) : null,
      one.next_step ? h("div", { class: "soft" }, `next: ${one.next_step}`) : null))));
}
