// Plays a stream from its first fragment: a plain <video src> waits for about twenty frames.
import { getStream } from "./api.js";

const once = (target, name) =>
  new Promise((resolve, reject) => {
    target.addEventListener(name, resolve, { once: true });
    target.addEventListener("error", reject, { once: true });
  });

function findBox(bytes, name) {
  const codes = [...name].map((letter) => letter.charCodeAt(0));
  return bytes.findIndex((_, at) => codes.every((code, index) => bytes[at + index] === code));
}

// The codec in the header of an MP4, such as avc1.64001f: the three bytes after the version in its avcC box. Null if
// the header is not complete; throws for another codec, when the first fragment begins without that box.
export function findCodec(bytes) {
  const at = findBox(bytes, "avcC");
  if (at >= 0 && at + 8 <= bytes.length) {
    return `avc1.${[...bytes.slice(at + 5, at + 8)].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
  }
  if (at < 0 && findBox(bytes, "moof") >= 0) throw new Error("This codec is played only when the clip is finished.");
  return null;
}

function join(first, second) {
  const both = new Uint8Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}

export const canPlayLive = () => typeof MediaSource !== "undefined";

// Append the stream of a video to an element until it ends. Rejects when the attempt fails.
export async function playLive(element, id, signal) {
  const source = new MediaSource();
  const url = URL.createObjectURL(source);
  element.src = url;
  await once(source, "sourceopen");
  URL.revokeObjectURL(url);
  const reader = (await getStream(`/v1/videos/${id}/stream`, { signal })).getReader();
  let buffer = null;
  let head = new Uint8Array();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    let data = value;
    if (!buffer) {
      head = join(head, value);
      const codec = findCodec(head);
      if (!codec) continue;
      buffer = source.addSourceBuffer(`video/mp4; codecs="${codec}"`);
      data = head;
    }
    buffer.appendBuffer(data);
    await once(buffer, "updateend");
  }
  if (source.readyState === "open") source.endOfStream();
}
