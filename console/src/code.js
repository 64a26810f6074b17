// A request as curl, Python and JavaScript. The key is a variable of the environment, never the key itself.

const quote = (text) => `'${String(text).replaceAll("'", `'\\''`)}'`;
const isFile = (value) => value instanceof File;

export function toCurl(body, origin) {
  const fields = Object.entries(body).map(([name, value]) => `  -F ${quote(isFile(value) ? `${name}=@${value.name}` : `${name}=${value}`)}`);
  return [`curl ${origin}/v1/videos \\`, `  -H "Authorization: Bearer $FILMGATE_API_KEY" \\`, fields.join(" \\\n")].join("\n");
}

const OWN = new Set(["fps", "steps", "seed", "guidance", "negative_prompt", "lora", "quality"]);

export function toPython(body, origin) {
  const literal = (name, value) => (isFile(value) ? `open(${JSON.stringify(value.name)}, "rb")` : JSON.stringify(name === "seconds" ? String(value) : value));
  const known = Object.entries(body).filter(([name]) => !OWN.has(name)).map(([name, value]) => `    ${name}=${literal(name, value)},`);
  const own = Object.entries(body).filter(([name]) => OWN.has(name));
  if (own.length) known.push(`    extra_body={${own.map(([name, value]) => `"${name}": ${literal(name, value)}`).join(", ")}},`);
  return `import os
from openai import OpenAI

client = OpenAI(base_url="${origin}/v1", api_key=os.environ["FILMGATE_API_KEY"])
video = client.videos.create_and_poll(
${known.join("\n")}
)
client.videos.download_content(video.id).write_to_file("clip.mp4")`;
}

export function toJavaScript(body, origin) {
  const lines = Object.entries(body).map(([name, value]) =>
    `form.set(${JSON.stringify(name)}, ${isFile(value) ? "file" : JSON.stringify(String(value))});`);
  return `const form = new FormData();
${lines.join("\n")}
const response = await fetch("${origin}/v1/videos", {
  method: "POST",
  headers: { Authorization: \`Bearer \${process.env.FILMGATE_API_KEY}\` },
  body: form,
});
const video = await response.json();`;
}
