// The API. An error is thrown as Problems, which the views show as they are.

export class Problems extends Error {
  constructor(status, list) {
    super(list.map((one) => `${one.where}: ${one.found}`).join("; "));
    this.status = status;
    this.list = list;
  }
}

async function asked(path, options) {
  let response;
  try {
    response = await fetch(`/api/v1/${path}`, options);
  } catch {
    throw new Problems(0, [{ where: "server", found: "does not answer", next_step: "is it running?" }]);
  }
  if (response.status === 204) return null;
  const body = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new Problems(response.status, body.problems ?? [{ where: path, found: `status ${response.status}` }]);
  }
  return body;
}

export function get(path, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== "" && value !== null);
  return asked(given.length ? `${path}?${new URLSearchParams(given)}` : path, {});
}

export function post(path, body = {}, signal = null) {
  return asked(path, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal,
  });
}

export function eventsOf(run) {
  return new EventSource(`/api/v1/runs/${encodeURIComponent(run)}/events`);
}

export function fileOf(run, name) {
  return `/api/v1/runs/${encodeURIComponent(run)}/files/${name.split("/").map(encodeURIComponent).join("/")}`;
}
