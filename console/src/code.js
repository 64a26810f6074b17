// A request as curl, Python and JavaScript. The key is in the environment variable that the SDK reads, never in the
// code. A FILMGATE_ variable that is not a setting would stop the `filmgate` commands in the same shell.

export const KEY_HINT = "Set `OPENAI_API_KEY` to an API key of this server.";

const quote = (text) => `'${String(text).replaceAll("'", `'\\''`)}'`;
const isFile = (value) => value instanceof File;
const isObject = (value) => typeof value === "object" && !isFile(value);

// The fields of a form: {a: {b: 1}} is a[b]=1.
const flatten = (body) =>
  Object.entries(body).flatMap(([name, value]) =>
    isObject(value) ? Object.entries(value).map(([key, each]) => [`${name}[${key}]`, each]) : [[name, value]],
  );

// curl's -F reads a file where a value starts with @ or <, and ends it at a semicolon: texts are sent as they are.
function toField([name, value]) {
  if (isFile(value)) return `-F ${quote(`${name}=@"${value.name.replaceAll(/[\\"]/g, "\\$&")}"`)}`;
  return `${name.endsWith("prompt") ? "--form-string" : "-F"} ${quote(`${name}=${value}`)}`;
}

export function toCurl(body, origin, path = "") {
  const fields = flatten(body).map((field) => `  ${toField(field)}`);
  return [
    `curl ${origin}/v1/videos${path} \\`,
    `  -H "Authorization: Bearer $OPENAI_API_KEY" \\`,
    fields.join(" \\\n"),
  ].join("\n");
}

const OWN = new Set(["fps", "steps", "seed", "guidance", "negative_prompt", "lora", "quality", "pixel_format"]);
// The SDK takes files, but no objects, for the fields it knows.
const isExtra = ([name, value]) => OWN.has(name) || isObject(value);

function toPythonCall(body, path) {
  const literal = ([name, value]) =>
    isFile(value)
      ? `open(${JSON.stringify(value.name)}, "rb")`
      : isObject(value)
        ? toDict(Object.entries(value))
        : JSON.stringify(name === "seconds" ? String(value) : value);
  const toDict = (entries) => `{${entries.map((entry) => `"${entry[0]}": ${literal(entry)}`).join(", ")}}`;
  const entries = Object.entries(body),
    extra = entries.filter(isExtra);
  if (path)
    return `client.post("/videos${path}", cast_to=Video, body=${toDict(entries)})\nvideo = client.videos.poll(video.id)`;
  const known = entries.filter((entry) => !isExtra(entry)).map((entry) => `    ${entry[0]}=${literal(entry)},`);
  if (extra.length) known.push(`    extra_body=${toDict(extra)},`);
  return `client.videos.create_and_poll(\n${known.join("\n")}\n)`;
}

export function toPython(body, origin, path = "") {
  return `from openai import OpenAI
${path ? "from openai.types import Video\n" : ""}
client = OpenAI(base_url="${origin}/v1")
video = ${toPythonCall(body, path)}
client.videos.download_content(video.id).write_to_file("clip.mp4")`;
}

export function toJavaScript(body, origin, path = "") {
  const lines = flatten(body).map(([name, value]) =>
    isFile(value)
      ? `form.set(${JSON.stringify(name)}, await openAsBlob(${JSON.stringify(value.name)}), ${JSON.stringify(value.name)});`
      : `form.set(${JSON.stringify(name)}, ${JSON.stringify(String(value))});`,
  );
  const hasFile = Object.values(body).some(isFile);
  return `${hasFile ? 'import { openAsBlob } from "node:fs";\n\n' : ""}const form = new FormData();
${lines.join("\n")}
const response = await fetch("${origin}/v1/videos${path}", {
  method: "POST",
  headers: { Authorization: \`Bearer \${process.env.OPENAI_API_KEY}\` },
  body: form,
});
const video = await response.json();`;
}
