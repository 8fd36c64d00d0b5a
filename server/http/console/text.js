// Numbers with units, and errors as sentences.
import {Broken, Refused} from "./api.js";

const NUMBER = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const GAP = "\u00a0";  // between a number and its unit no line ends
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function number(value) { return NUMBER.format(Number(value)); }

// "3.14 million".
export function count(value) {
  const sizes = [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"]];
  const [size, name] = sizes.find(([least]) => value >= least) ?? [1, ""];
  return size === 1 ? number(value) : `${(value / size).toPrecision(3)} ${name}`;
}

// Three digits: 912 B, 1.34 MB, 25.3 GB; powers of ten.
export function bytes(value) {
  let amount = Number(value);
  let unit = 0;
  // 999.5 would be written as 1,000.
  while (amount >= (unit ? 999.5 : 1000) && unit < UNITS.length - 1) {
    amount /= 1000;
    ++unit;
  }
  const digits = unit === 0 || amount >= 99.95 ? 0 : amount >= 9.995 ? 1 : 2;
  return `${amount.toFixed(digits)}${GAP}${UNITS[unit]}`;
}

export function tokens(value) { return `${number(value)} token${Number(value) === 1 ? "" : "s"}`; }

// "85 ms", "3.2 s", "4 min", "2 h", "5 d".
export function duration(seconds) {
  if (seconds < 0.95) return `${Math.round(seconds * 1000)}${GAP}ms`;
  if (seconds < 10) return `${seconds.toFixed(1)}${GAP}s`;
  if (seconds < 60) return `${Math.round(seconds)}${GAP}s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)}${GAP}min`;
  if (seconds < 2 * 86400) return `${Math.round(seconds / 3600)}${GAP}h`;
  return `${Math.round(seconds / 86400)}${GAP}d`;
}

export function rate(value) {
  return `${value >= 10 ? number(value) : value.toFixed(1)}${GAP}tokens/s`;
}

// A protobuf Duration in JSON, "1.5s", in seconds.
export function seconds(json) { return json ? Number.parseFloat(json) : 0; }

// "0.40 of", "3.1 times", "1,204 times".
export function ratio(value) {
  return value >= 10 ? number(value) : value.toFixed(1);
}

export function excerpt(text, length = 60) {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > length ? `${line.slice(0, length - 1).trimEnd()}…` : line;
}

export const GONE = "The session is no longer on the server: it was deleted, or was idle for too long.";
export const RESTORABLE = "Its text is here: a new session can read it again.";
const REASONS = {
  queue_full: "The server’s queue is full.",
  session_limit: "The server has as many sessions as it may have. Delete one, then send again.",
  draining: "The server is shutting down and takes nothing new.",
  tenant_sessions: "You have as many sessions as you may have. Delete one, then send again.",
  tenant_requests: "That were too many requests in a short time.",
  tenant_tokens: "That were too many tokens in a short time.",
  gave_way: "The server ended this so that others get their part of it.",
};
const STATUSES = {
  401: "The server asks for a token.",
  403: "The token does not allow this.",
  404: GONE,
};

function sentence(text) {
  const trimmed = text.trim();
  const begun = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

// What went wrong, for people: in the server's own words where there are no better ones.
export function explain(error) {
  if (error instanceof Broken) return error.message;
  if (!(error instanceof Refused)) return `The console failed: ${sentence(String(error))}`;
  const what = REASONS[error.reason] ?? STATUSES[error.status] ?? sentence(error.message);
  return error.retryMs ? `${what} Try again in ${duration(error.retryMs / 1000)}.` : what;
}
