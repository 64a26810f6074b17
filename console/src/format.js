// Numbers, times and states as people read them.

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value > 0 && value < 0.1) return "< 0.1 s";
  if (value < 10) return `${Number(value.toFixed(1))} s`;
  if (value < 600) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value >= 172800) return `${Math.round(value / 86400)} days`;
  return `${(value / 3600).toFixed(1)} h`;
}

export function usd(value) {
  if (value === null || value === undefined) return "–";
  const digits = value >= 100 ? 0 : value >= 0.1 ? 2 : 5;
  return `$${value.toLocaleString("en-US", { maximumFractionDigits: digits, minimumFractionDigits: Math.min(digits, 2) })}`;
}

export const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
export const percent = (share) => `${(100 * share).toFixed(share > 0.995 && share < 1 ? 2 : 1)} %`;
export const count = (value) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en-US", { maximumFractionDigits: 1 });

export function cost(value) {
  const gpu = `${value.gpu_seconds < 10 ? value.gpu_seconds.toFixed(1) : Math.round(value.gpu_seconds)} GPU-seconds`;
  return value.usd === null ? gpu : `${usd(value.usd)} · ${gpu}`;
}

export function when(unix) {
  const date = new Date(unix * 1000);
  const isToday = date.toDateString() === new Date().toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  return isToday ? time : `${date.toLocaleDateString([], { month: "short", day: "numeric" })}, ${time}`;
}

const REASONS = {
  default: "meets the deadline",
  deadline: "your GPUs would miss the deadline",
  age: "it had waited too long",
  provider_slower: "the provider would be slower",
  too_late: "late on both routes",
  provider_unhealthy: "the provider is not healthy",
  provider_cannot: "the provider cannot render it",
  policy: "the tenant's rules",
  disabled: "no provider is configured",
  returned: "the provider returned it",
};
// Where a clip is rendered, and why there.
export const route = ({ route: name, route_reason: reason }) =>
  `${name === "gpu" ? "your GPU" : "managed provider"}, ${REASONS[reason] || reason}`;

const STAGES = {
  load: "Loading the model",
  text: "Encoding the prompt",
  denoise: "Generating",
  decode: "Decoding",
  upload: "Uploading",
};
export const stage = (name) => STAGES[name] || name;

export function state(video) {
  if (video.status === "completed") return "Ready";
  if (video.status === "failed") return video.error?.code === "cancelled" ? "Cancelled" : "Failed";
  if (video.status === "in_progress") return stage(video.stage) || "Starting";
  return video.queue_position ? `Queued, position ${video.queue_position}` : "Queued";
}

export const isFinal = (video) => video.status === "completed" || video.status === "failed";
