// Requests to the API of this server. The key is kept for the tab only and is sent in a header, never in a URL.

const KEY = "filmgate.key";
let onSignOut = () => {};

export const readKey = () => sessionStorage.getItem(KEY) || "";
export const saveKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));
export const whenSignedOut = (callback) => (onSignOut = callback);

export class Problem extends Error {
  constructor(status, error, retryAfter) {
    super(error.message || `The server responded with ${status}.`);
    this.status = status;
    this.retryAfter = Number(retryAfter) || 0;
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
    const next = options.method ? "Try again when it is back." : "Retrying when it is back.";
    throw new Problem(0, { message: `The server does not respond. ${next}`, code: "offline" });
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    if (response.status === 401) onSignOut();
    throw new Problem(response.status, body.error || {}, response.headers.get("Retry-After"));
  }
  return response;
}

export const get = async (path, options) => (await request(path, options)).json();
export const patch = async (path, body) =>
  (
    await request(path, {
      method: "PATCH",
      body: JSON.stringify(body),
      headers: { "Content-Type": "application/json" },
    })
  ).json();
export const remove = async (path) => (await request(path, { method: "DELETE" })).json();

export async function post(path, body, options = {}) {
  const isForm = body instanceof FormData;
  const headers = isForm || body === undefined ? {} : { "Content-Type": "application/json" };
  const content = isForm || body === undefined ? body : JSON.stringify(body);
  return (
    await request(path, { method: "POST", body: content, ...options, headers: { ...headers, ...options.headers } })
  ).json();
}

export const getStream = async (path, options) => (await request(path, options)).body;
export const getBlob = async (path, options) => (await request(path, options)).blob();

const pause = (seconds, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });

const MAX_PAUSE = 30;

// Whether the same request may succeed later: the server is away, busy, or limits the rate.
const mayPass = (error) => !(error.status >= 400 && error.status < 500) || error.status === 429;
const backOff = (failures, error) => Math.min(Math.max(2 ** failures, error?.retryAfter || 0), MAX_PAUSE);

// Call `work`, again every so many seconds while the tab is visible, less and less often while it fails. One call at a
// time: a slow server gets no pile of requests. Without an interval, until it succeeds or cannot.
export async function repeat(work, everySeconds, signal) {
  for (let failures = 0, isFirst = true; !signal.aborted; isFirst = false) {
    let error = null;
    if (isFirst || !document.hidden) {
      try {
        await work(signal);
        failures = 0;
      } catch (found) {
        error = found;
        failures += 1;
      }
    }
    if (!everySeconds && (error ? !mayPass(error) : failures === 0)) return;
    await pause(failures ? Math.max(backOff(failures, error), everySeconds || 0) : everySeconds, signal);
  }
}

const untilShown = (signal) =>
  new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true, signal });
    signal.addEventListener("abort", resolve, { once: true });
  });

// Follow the events of a video until its end; reconnects with Last-Event-ID after an outage. A hidden tab has no stream:
// browsers open six connections to a server for all tabs together, so those of three tabs would block every request.
export async function follow(id, onEvent, signal, since) {
  let last = since;
  let failures = 0;
  while (!signal.aborted) {
    if (document.hidden) {
      await untilShown(signal);
      continue;
    }
    const connection = new AbortController();
    const close = () => connection.abort();
    signal.addEventListener("abort", close, { signal: connection.signal });
    document.addEventListener("visibilitychange", close, { signal: connection.signal });
    let problem = null;
    try {
      const headers = last === undefined ? {} : { "Last-Event-ID": String(last) };
      const response = await request(`/v1/videos/${id}/events`, { headers, signal: connection.signal });
      for await (const event of readEvents(response.body)) {
        failures = 0;
        if (event.id) last = event.id;
        onEvent(event.name, event.data);
        const isFinal = event.data.status === "completed" || event.data.status === "failed";
        if (event.name === "gone" || (isFinal && !event.data.is_replay)) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 404) onEvent("gone", {}); // deleted while there was no stream
      if (!mayPass(error)) return;
      problem = error;
    } finally {
      close();
    }
    if (document.hidden) continue;
    failures += 1;
    await pause(backOff(failures - 1, problem), signal);
  }
}

const POLL_SECONDS = 2;
const POLL_PAGE = 100;
const MAX_SINGLE = 2;
const polled = new Map();
let poller = null;

// One request for all videos that are polled: the open ones, page by page. Those that a whole round did not contain have
// ended or are gone, and are read one by one.
function startPolling() {
  let after = "",
    seen = new Set();
  return repeat(
    async (signal) => {
      const page = await get(`/v1/videos?status=open&limit=${POLL_PAGE}${after}`, { signal });
      for (const video of page.data) {
        seen.add(video.id);
        polled.get(video.id)?.("status", video);
      }
      after = page.has_more ? `&after=${page.last_id}` : "";
      if (page.has_more) return;
      const ended = [...polled.keys()].filter((id) => !seen.has(id)).slice(0, MAX_SINGLE);
      seen = new Set();
      for (const id of ended) {
        try {
          polled.get(id)?.("status", await get(`/v1/videos/${id}`, { signal }));
        } catch (error) {
          if (error.status !== 404) throw error;
          polled.get(id)?.("gone", {});
        }
      }
    },
    POLL_SECONDS,
    poller.signal,
  );
}

// Poll a video until the listener says that this is enough.
function poll(id, isEnough, signal) {
  return new Promise((resolve) => {
    const listener = (name, data) => {
      if (isEnough(name, data)) end();
    };
    const end = () => {
      if (polled.get(id) === listener) polled.delete(id);
      if (polled.size === 0) {
        poller?.abort();
        poller = null;
      }
      resolve();
    };
    polled.set(id, listener);
    signal.addEventListener("abort", end, { once: true });
    if (!poller) {
      poller = new AbortController();
      startPolling();
    }
  });
}

const MAX_STREAMS = 2;
const NEXT_POSITION = 2;
let streams = 0;

// Updates of a video until its end. Browsers open six connections to a server for all tabs together: only
// videos that run, or will soon, have a stream of events; the others are polled, all by one request.
export async function track(video, onEvent, signal) {
  let current = video;
  const isSoon = () => current.status !== "queued" || (current.queue_position ?? 1) <= NEXT_POSITION;
  const isOver = () => current.status === "completed" || current.status === "failed";
  while (!signal.aborted && !isOver()) {
    if (isSoon() && streams < MAX_STREAMS) {
      streams += 1;
      try {
        return await follow(video.id, onEvent, signal);
      } finally {
        streams -= 1;
      }
    }
    await poll(
      video.id,
      (name, data) => {
        onEvent(name, data);
        current = name === "gone" ? { status: "failed" } : data;
        return isOver() || (isSoon() && streams < MAX_STREAMS);
      },
      signal,
    );
  }
  return undefined;
}

// The server sends at least a comment every 15 s: a connection that was cut without notice stays silent for longer.
const SILENCE_SECONDS = 45;

async function readInTime(reader) {
  let timer;
  const silence = new Promise((_resolve, reject) => {
    timer = setTimeout(() => reject(new TypeError("The connection is silent.")), SILENCE_SECONDS * 1000);
  });
  try {
    return await Promise.race([reader.read(), silence]);
  } finally {
    clearTimeout(timer);
  }
}

async function* readEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await readInTime(reader);
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
