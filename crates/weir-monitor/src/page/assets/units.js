// Numbers as people read them. What is no number is a dash.

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en-GB", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** Three digits and a step of a thousand: 12.3 Mbit. */
function stepped(value, steps) {
  if (!Number.isFinite(value)) return "–";
  let step = 0;
  while (value >= 999.5 && step < steps.length - 1) { value /= 1000; step += 1; }
  const digits = step === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)} ${steps[step]}`;
}

export const bitRate = (value) => stepped(value, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"]);
export const bytes = (value) => stepped(value, ["B", "kB", "MB", "GB", "TB", "PB"]);

/** All digits up to ten million. */
export function count(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 1e12) return `${(value / 1e12).toFixed(2)} trillion`;
  if (value >= 1e10) return `${(value / 1e9).toFixed(2)} billion`;
  return whole.format(value);
}

/** A rate without its unit. */
export function rate(value) {
  if (!Number.isFinite(value)) return "–";
  return value > 0 && value < 10 ? tenths.format(value) : count(value);
}

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const s = Math.max(0, Math.floor(seconds));
  const [d, h, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (d > 0) return `${d} d ${h} h`;
  if (h > 0) return `${h} h ${m} min`;
  return m > 0 ? `${m} min ${s % 60} s` : `${s} s`;
}

/** 0.4 % */
export function share(part, all) {
  const value = all > 0 ? Math.min(100, (part / all) * 100) : 0;
  const digits = value === 0 || value >= 10 ? 0 : value >= 0.1 ? 1 : 4;
  return `${value.toFixed(digits)} %`;
}

/** An address and its port. */
export function end(ip, port) {
  if (port === null || port === undefined) return ip;
  return ip.includes(":") ? `[${ip}]:${port}` : `${ip}:${port}`;
}

/** Changes a text only where it differs: what is selected stays so. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** As many children as there are things: makes, fills, removes. */
export function each(parent, things, make, fill) {
  while (parent.children.length > things.length) parent.lastElementChild.remove();
  things.forEach((thing, index) => {
    let child = parent.children[index];
    if (!child) { child = make(thing); parent.append(child); }
    fill(child, thing, index);
  });
}

/** An element with classes, and others in it. Names come from outside: never as HTML. */
export function make(tag, classes = "", ...children) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  element.append(...children);
  return element;
}

const known = new Map([["tcp", 0], ["udp", 1], ["icmp", 2], ["icmp6", 2], ["gre", 3], ["sctp", 4], ["esp", 5]]);

/** The place of a protocol in the palette: always the same for the usual ones. */
export function colour(protocol) {
  if (protocol === "other") return 8;
  if (!known.has(protocol)) known.set(protocol, 6 + (known.size % 2));
  return known.get(protocol);
}

/** The colours of the theme, by the names of style.css. */
export function theme() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}
