// Bodies of messages as text: JSON laid out without being understood, hex, base64. No DOM.
//
// JSON is indented token by token and never goes through JSON.parse: integers of 64 bits keep their
// digits, a key that is there twice stays twice, and a thousand levels of nesting need no stack.

const TOKEN = /\s*(?:([{}[\],:])|("(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")|(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null))/y;
const MAX_INDENT = 40;

/**
 * Lay JSON out over lines; null if the text is no JSON object or array.
 * maxCharacters: the layout ends there; what was read so far must be JSON.
 */
export function indentJson(text, maxCharacters = Infinity) {
  if (!/^\s*[{[]/.test(text)) return null;
  const open = [];
  let out = "";
  let expects = "value"; // value, key, colon, end; "first" is a value or the end of an empty list
  let position = 0;
  const line = () => `\n${"  ".repeat(Math.min(open.length, MAX_INDENT))}`;
  while (position < text.length && out.length < maxCharacters) {
    TOKEN.lastIndex = position;
    const match = TOKEN.exec(text);
    if (!match) return /\S/.test(text.slice(position)) ? null : finish();
    position = TOKEN.lastIndex;
    const [, mark, string, word] = match;
    const top = open.at(-1);
    if (mark === "{" || mark === "[") {
      if (expects !== "value" && expects !== "first value") return null;
      open.push(mark);
      const close = mark === "{" ? "}" : "]";
      const empty = /\s*(.)/sy;
      empty.lastIndex = position;
      if (empty.exec(text)?.[1] === close) {
        position = empty.lastIndex;
        open.pop();
        out += mark + close;
        expects = "end";
      } else {
        out += mark + line();
        expects = mark === "{" ? "key" : "first value";
      }
    } else if (mark === "}" || mark === "]") {
      if (expects !== "end" || top !== (mark === "}" ? "{" : "[")) return null;
      open.pop();
      out += line() + mark;
    } else if (mark === ",") {
      if (expects !== "end" || !top) return null;
      out += `,${line()}`;
      expects = top === "{" ? "key" : "value";
    } else if (mark === ":") {
      if (expects !== "colon") return null;
      out += ": ";
      expects = "value";
    } else if (expects === "key") {
      if (string === undefined) return null;
      out += string;
      expects = "colon";
    } else {
      if (expects !== "value" && expects !== "first value") return null;
      out += string ?? word;
      expects = "end";
    }
    if (!open.length && expects === "end" && /^\s*$/.test(text.slice(position))) return finish();
  }
  return out.length >= maxCharacters ? { text: out, isWhole: false } : null;

  function finish() {
    return open.length || expects !== "end" ? null : { text: out, isWhole: true };
  }
}

export function decodeUtf8(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

export const encodeUtf8 = (text) => new TextEncoder().encode(text);

/** Bytes of base64; null if it is none. */
export function fromBase64(text) {
  try {
    return Uint8Array.from(atob(text.replace(/\s+/g, "")), (character) => character.charCodeAt(0));
  } catch {
    return null;
  }
}

export function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

/** Lines of address, sixteen bytes and their characters. */
export function hexDump(bytes, maxBytes = 4096) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, maxBytes); at += 16) {
    const row = Array.from(bytes.subarray(at, Math.min(at + 16, maxBytes)));
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}
