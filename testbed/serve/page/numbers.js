// Numbers as people read them; the same rules as the report's.

const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) >= 10 ** (digits - 1)) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

export function quantity(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "bps" || unit === "bytes") {
    const short = unit === "bytes" ? "B" : "bps";
    const found = PREFIXES.find(([factor]) => Math.abs(value) >= factor);
    return found ? `${number(value / found[0])} ${found[1]}${short}` : `${number(value)} ${short}`;
  }
  if (unit === "s" && value !== 0 && Math.abs(value) < 0.1) return `${number(value * 1000)} ms`;
  if (unit === "%") return `${number(value * 100)} %`;
  if (unit === "ratio" || unit === "") return number(value);
  return `${number(value)} ${value === 1 ? unit.replace(/s$/, "") : unit}`;
}

export function seconds(value) {
  return value === null || value === undefined ? "–" : `${number(value)} s`;
}

export function moment(s) {
  const date = new Date(s * 1000);
  const two = (n) => String(n).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}`;
}
