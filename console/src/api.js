// Requests to the API of this server. The key is kept for the tab only and is sent in a header, never in a URL.

const KEY = "filmgate.key";
let onSignOut = () => {};

export const readKey = () => sessionStorage.getItem(KEY) || "";
export const saveKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));
export const whenSignedOut = (callback) => (onSignOut = callback);

export class Problem extends Error {
  constructor(status, error) {
    super(error.message || `the server responded with ${status}`);
    this.status = status;
    this.code = error.code;
    this.param = error.param;
  }
}

function withKey(headers = {}) {
  const key = readKey();
  return key ? { ...headers, Authorization: `Bearer ${key}` } : headers;
}

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "omit", ...options, headers: withKey(options.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { message: "The server does not respond. Retrying when it is back.", code: "offline" });
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    if (response.status === 401) onSignOut();
    throw new Problem(response.status, body.error || {});
  }
  return response;
}

export const get = async (path, options) => (await request(path, options)).json();
export const patch = async (path, body) => (await request(path, { method: "PATCH", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } })).json();
export const remove = async (path) => (await request(path, { method: "DELETE" })).json();

export async function post(path, body, options = {}) {
  const isForm = body instanceof FormData;
  const headers = isForm || body === undefined ? {} : { "Content-Type": "application/json" };
  const content = isForm || body === undefined ? body : JSON.stringify(body);
  return (await request(path, { method: "POST", body: content, ...options, headers: { ...headers, ...options.headers } })).json();
}

export const getStream = async (path, options) => (await request(path, options)).body;
export const getBlob = async (path, options) => (await request(path, options)).blob();

const pause = (seconds, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });

// Follow the events of a video until its end; reconnects with Last-Event-ID after an outage.
export async function follow(id, onEvent, signal, since) {
  let last = since;
  let failures = 0;
  while (!signal.aborted) {
    try {
      const headers = last === undefined ? {} : { "Last-Event-ID": String(last) };
      const response = await request(`/v1/videos/${id}/events`, { headers, signal });
      for await (const event of readEvents(response.body)) {
        failures = 0;
        if (event.id) last = event.id;
        onEvent(event.name, event.data);
        const isFinal = event.data.status === "completed" || event.data.status === "failed";
        if (event.name === "gone" || (isFinal && !event.data.is_replay)) return;
      }
    } catch (error) {
      if (signal.aborted || (error.status >= 400 && error.status < 500)) return;
    }
    failures += 1;
    await pause(Math.min(0.5 * 2 ** failures, 8), signal);
  }
}

const MAX_STREAMS = 2;
const POLL_SECONDS = 2;
const NEXT_POSITION = 2;
let streams = 0;

// Updates of a video until its end. Browsers open six connections to a server for all tabs together: only
// videos that run, or will soon, have a stream of events; the others are polled.
export async function track(video, onEvent, signal) {
  let current = video;
  while (!signal.aborted) {
    const isSoon = current.status !== "queued" || (current.queue_position ?? 1) <= NEXT_POSITION;
    if (isSoon && streams < MAX_STREAMS) {
      streams += 1;
      try {
        return await follow(video.id, onEvent, signal);
      } finally {
        streams -= 1;
      }
    }
    await pause(POLL_SECONDS, signal);
    try {
      current = await get(`/v1/videos/${video.id}`, { signal });
      onEvent("status", current);
    } catch (error) {
      if (error.status === 404) onEvent("gone", {});
      if (error.status >= 400 && error.status < 500) return undefined;
    }
  }
  return undefined;
}

async function* readEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const event = parseEvent(text.slice(0, end));
        text = text.slice(end + 2);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection may be closed already
  }
}

function parseEvent(block) {
  const fields = {};
  for (const line of block.split("\n")) {
    const [, name, value] = /^([a-z]+): ?(.*)$/.exec(line) || [];
    if (name) fields[name] = value;
  }
  return fields.data ? { id: fields.id, name: fields.event, data: JSON.parse(fields.data) } : null;
}
