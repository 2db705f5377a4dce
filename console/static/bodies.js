// Bodies of messages as text: JSON laid out without being understood, hex, base64. No DOM.
//
// JSON is indented token by token and never goes through JSON.parse: integers of 64 bits keep their
// digits, a key that is there twice stays twice, and a thousand levels of nesting need no stack.

const TOKEN = /\s*(?:([{}[\],:])|("(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")|(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null))/y;
const MAX_INDENT = 40;

/**
 * Lay JSON out over lines; null if the text is no JSON object or array.
 * maxCharacters: the layout ends at the line's end there; what was read so far must be JSON.
 */
export function indentJson(text, maxCharacters = Infinity) {
  const { value, done } = jsonPieces(text, maxCharacters).next();
  if (!done) return { text: value, isWhole: false };
  return value.isJson ? { text: value.rest, isWhole: true } : null;
}

/**
 * Lay JSON out piece by piece, so that a long body can be shown bit by bit.
 * Yields lines of at least `size` characters together. Returns {isJson, rest, position}: the last
 * lines, and where in the text they end; from there on it is no JSON unless `isJson`.
 */
export function* jsonPieces(text, size) {
  const open = [];
  let out = "";
  let expects = "value"; // value, key, colon, end; "first value" may be the end of an empty list
  let position = 0;
  const line = () => `\n${"  ".repeat(Math.min(open.length, MAX_INDENT))}`;
  if (!/^\s*[{[]/.test(text)) return { isJson: false, rest: out, position };
  while (position < text.length) {
    TOKEN.lastIndex = position;
    const match = TOKEN.exec(text);
    if (!match) break;
    const [, mark, string, word] = match;
    const top = open.at(-1);
    let lines = ""; // what begins a line after this token
    if (mark === "{" || mark === "[") {
      if (expects !== "value" && expects !== "first value") break;
      open.push(mark);
      const close = mark === "{" ? "}" : "]";
      const empty = /\s*(.)/sy;
      empty.lastIndex = TOKEN.lastIndex;
      if (empty.exec(text)?.[1] === close) {
        TOKEN.lastIndex = empty.lastIndex;
        open.pop();
        out += mark + close;
        expects = "end";
      } else {
        out += mark;
        lines = line();
        expects = mark === "{" ? "key" : "first value";
      }
    } else if (mark === "}" || mark === "]") {
      if (expects !== "end" || top !== (mark === "}" ? "{" : "[")) break;
      open.pop();
      out += line() + mark;
    } else if (mark === ",") {
      if (expects !== "end" || !top) break;
      out += ",";
      lines = line();
      expects = top === "{" ? "key" : "value";
    } else if (mark === ":") {
      if (expects !== "colon") break;
      out += ": ";
      expects = "value";
    } else if (expects === "key") {
      if (string === undefined) break;
      out += string;
      expects = "colon";
    } else {
      if (expects !== "value" && expects !== "first value") break;
      out += string ?? word;
      expects = "end";
    }
    position = TOKEN.lastIndex;
    if (lines && out.length >= size) {
      yield out;
      out = lines.slice(1);
    } else out += lines;
  }
  return { isJson: !open.length && expects === "end" && !/\S/.test(text.slice(position)), rest: out, position };
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
export function hexDump(bytes, from = 0, to = bytes.length) {
  const lines = [];
  const end = Math.min(bytes.length, to);
  for (let at = from; at < end; at += 16) {
    const row = Array.from(bytes.subarray(at, Math.min(at + 16, end)));
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}
