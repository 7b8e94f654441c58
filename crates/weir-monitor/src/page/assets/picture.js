// The top flows as a picture that moves: hosts in two columns, a curve for each flow, as thick as its rate, with dots
// that run the way its packets go. Whoever wants no motion gets the same with arrow heads that stand still.

import { surface } from "./chart.js";
import { bitRate, colour, count, end, rate, say, theme } from "./units.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");
/** Dots of one direction of a flow, at most. */
const DOTS_MAX = 11;
/** Seconds from one host to the other. */
const JOURNEY_S = 3.6;
/** Pictures a second: dots are slow, and the machine has other work. */
const FRAME_MS = 32;

/** The name of a flow, and of its other direction. */
export function keyOf(flow) {
  const ends = [end(flow.src_ip, flow.src_port), end(flow.dst_ip, flow.dst_port)].sort();
  return [...ends, flow.proto, flow.vlan ?? "", flow.interface ?? ""].join(" ");
}

export class Picture {
  constructor(canvas, caption) {
    this.canvas = canvas;
    this.caption = caption;
    this.links = new Map();
    this.hosts = new Map();
    this.before = new Map();
    this.pointed = null;
    this.isPaused = false;
    this.isSeen = true;
    this.clock = 0;
    new IntersectionObserver(([entry]) => { this.isSeen = entry.isIntersecting; this.wake(); }).observe(canvas);
    new ResizeObserver(() => this.draw(0)).observe(canvas);
    document.addEventListener("visibilitychange", () => this.wake());
    still.addEventListener("change", () => this.wake());
    canvas.addEventListener("pointermove", (event) => this.point(this.at(event)));
    canvas.addEventListener("pointerdown", (event) => this.point(this.at(event)));
    canvas.addEventListener("pointerleave", () => this.point(null));
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    this.wake();
  }

  /** Takes in the flows of a view. */
  update(view) {
    this.total = view.table.flows;
    const wanted = this.choose(view.flows);
    for (const link of this.links.values()) { link.isWanted = false; link.rates = [zero(), zero()]; }
    for (const flow of wanted) this.add(flow);
    this.remember(view.flows);
    this.arrange();
    this.say();
    this.wake();
    if (!this.moves) this.draw(0);
  }

  /** The top flows. One that is shown stays while it is nearly one of them, so that the picture is calm. */
  choose(flows) {
    const most = this.canvas.clientWidth < 600 ? 9 : 18;
    const near = flows.slice(0, Math.ceil(most * 1.5));
    const stays = near.filter((flow) => this.links.get(keyOf(flow))?.isWanted).slice(0, most);
    const known = new Set(stays);
    const others = near.filter((flow) => !known.has(flow)).slice(0, most - stays.length);
    return [...stays, ...others].filter((flow) => flow.rates.bits > 0);
  }

  add(flow) {
    const key = keyOf(flow);
    let link = this.links.get(key);
    if (!link) {
      const start = spread(key);
      const [phases, rates] = [[start, start], [zero(), zero()]];
      link = { key, from: flow.src_ip, to: flow.dst_ip, alpha: 0, width: 0, phases, rates };
      this.links.set(key, link);
    }
    const isForward = flow.src_ip === link.from;
    const share = this.forwardShare(flow);
    [share, 1 - share].forEach((part, direction) => {
      const rates = link.rates[isForward ? direction : 1 - direction];
      rates.packets += flow.rates.packets * part;
      rates.bits += flow.rates.bits * part;
    });
    const [src, dst] = [end(flow.src_ip, flow.src_port), end(flow.dst_ip, flow.dst_port)];
    if (!link.isWanted) link.text = `${src} → ${dst} ${flow.proto_name}`;
    Object.assign(link, { isWanted: true, protocol: flow.proto_name });
  }

  /** The part of a flow's packets that go from its source, since the view before where that is known. */
  forwardShare(flow) {
    const before = this.before.get(nameOf(flow));
    let [forward, reverse] = [flow.packets, flow.reverse.packets];
    if (before && forward >= before[0] && reverse >= before[1] && forward + reverse > before[0] + before[1]) {
      forward -= before[0];
      reverse -= before[1];
    }
    return forward + reverse > 0 ? forward / (forward + reverse) : 1;
  }

  remember(flows) {
    this.before = new Map(flows.map((flow) => [nameOf(flow), [flow.packets, flow.reverse.packets]]));
  }

  /** Gives each host a side and a place. Only where hosts come or go does anything change places. */
  arrange() {
    const shown = [...this.links.values()].filter((link) => link.isWanted);
    const most = Math.max(1, ...shown.map(bitsOf));
    for (const link of this.links.values()) link.goal = link.isWanted ? 1.4 + 12 * Math.sqrt(bitsOf(link) / most) : 0;
    const names = new Set(shown.flatMap((link) => [link.from, link.to]));
    const isSame = names.size === this.hosts.size && [...names].every((name) => this.hosts.has(name));
    for (const name of this.hosts.keys()) if (!names.has(name)) this.hosts.delete(name);
    for (const link of [...shown].sort((a, b) => bitsOf(b) - bitsOf(a))) {
      const [from, to] = [this.hosts.get(link.from), this.hosts.get(link.to)];
      if (!from) this.hosts.set(link.from, { name: link.from, side: to ? 1 - to.side : 0, y: null });
      if (!to) this.hosts.set(link.to, { name: link.to, side: 1 - this.hosts.get(link.from).side, y: null });
    }
    for (const host of this.hosts.values()) {
      host.links = shown.filter((link) => link.from === host.name || link.to === host.name);
      host.bits = host.links.reduce((sum, link) => sum + bitsOf(link), 0);
    }
    if (!isSame || !this.order) this.sort();
  }

  sort() {
    const side = (which) => [...this.hosts.values()].filter((host) => host.side === which);
    const left = side(0).sort((a, b) => b.bits - a.bits);
    const place = new Map(left.map((host, index) => [host.name, index]));
    // A host stands across from those that it talks to: fewer curves cross.
    const across = (host) => {
      const weighed = host.links.map((link) => {
        const other = link.from === host.name ? link.to : link.from;
        return [place.get(other) ?? 0, bitsOf(link)];
      });
      const all = weighed.reduce((sum, [, bits]) => sum + bits, 0) || 1;
      return weighed.reduce((sum, [at, bits]) => sum + at * bits, 0) / all;
    };
    const right = side(1).sort((a, b) => across(a) - across(b));
    this.order = [left, right];
  }

  get moves() {
    return !still.matches && !this.isPaused && this.isSeen && !document.hidden;
  }

  wake() {
    if (this.frame || !this.moves) { if (!this.moves) this.draw(0); return; }
    let last = performance.now();
    const next = (now) => {
      if (!this.moves) { this.frame = null; this.draw(0); return; }
      if (now - last >= FRAME_MS) {
        this.draw(Math.min(0.1, (now - last) / 1000));
        last = now;
      }
      this.frame = requestAnimationFrame(next);
    };
    this.frame = requestAnimationFrame(next);
  }

  /** Draws, so many seconds after the last time. 0: everything is at its place at once. */
  draw(seconds) {
    const drawn = surface(this.canvas);
    if (!drawn || !this.order) return;
    const colours = theme();
    const ease = seconds === 0 ? 1 : 1 - Math.exp(-seconds * 5);
    for (const [key, link] of this.links) {
      link.width += (link.goal - link.width) * ease;
      link.alpha += ((link.isWanted ? 1 : 0) - link.alpha) * ease;
      if (!link.isWanted && link.alpha < 0.02) this.links.delete(key);
    }
    this.place(drawn, ease);
    const links = [...this.links.values()].filter((link) => link.curve);
    for (const link of links) this.drawCurve(drawn.context, link, colours);
    for (const link of links) this.drawDots(drawn.context, link, colours, seconds);
    this.drawHosts(drawn, colours);
  }

  place({ context, width, height }, ease) {
    const isNarrow = width < 600;
    const label = isNarrow ? 0 : Math.min(190, Math.max(110, ...[...this.hosts.values()]
      .map((host) => context.measureText(short(host.name, 26)).width + 18)));
    const columns = [label + 3, width - label - 3];
    this.order.forEach((hosts, side) => {
      const heights = hosts.map((host) => Math.max(6, host.links.reduce((sum, link) => sum + link.width + 1, -1)));
      const free = height - heights.reduce((sum, one) => sum + one, 0) - (isNarrow ? 18 : 8);
      const gap = Math.max(2, Math.min(46, free / Math.max(1, hosts.length)));
      const used = heights.reduce((sum, one) => sum + one, 0) + gap * hosts.length;
      let y = (height - used) / 2 + gap / 2 + (isNarrow ? 6 : 0);
      hosts.forEach((host, index) => {
        host.y = host.y === null ? y : host.y + (y - host.y) * ease;
        Object.assign(host, { x: columns[side], height: heights[index], gap });
        y += heights[index] + gap;
      });
    });
    this.attach(width);
  }

  /** The ends of each curve, next to each other along its hosts, in the order of their other ends. */
  attach(width) {
    const ends = new Map();
    for (const host of this.hosts.values()) {
      const other = (link) => this.hosts.get(link.from === host.name ? link.to : link.from)?.y ?? 0;
      let y = host.y;
      for (const link of [...host.links].sort((a, b) => other(a) - other(b))) {
        ends.set(`${link.key} ${host.name}`, [host.x, y + link.width / 2, host.side === 0 ? 1 : -1]);
        y += link.width + 1;
      }
    }
    for (const link of this.links.values()) {
      const [a, b] = [ends.get(`${link.key} ${link.from}`), ends.get(`${link.key} ${link.to}`)];
      if (!a || !b) continue;
      const reach = a[0] === b[0] ? width * 0.3 : Math.abs(a[0] - b[0]) * 0.46;
      link.curve = [a[0], a[1], a[0] + a[2] * reach, a[1], b[0] + b[2] * reach, b[1], b[0], b[1]];
    }
  }

  drawCurve(context, link, colours) {
    const [x, y, ...rest] = link.curve;
    context.beginPath();
    context.moveTo(x, y);
    context.bezierCurveTo(...rest);
    context.lineWidth = Math.max(0.5, link.width);
    context.strokeStyle = colours(`p${colour(link.protocol)}`);
    const dims = this.pointed && this.pointed !== link.key;
    context.globalAlpha = link.alpha * (dims ? 0.1 : this.pointed ? 0.6 : Number(colours("curve")));
    context.stroke();
    context.globalAlpha = 1;
  }

  drawDots(context, link, colours, seconds) {
    const tint = colours(`p${colour(link.protocol)}`);
    if (this.pointed && this.pointed !== link.key) return;
    link.rates.forEach(({ packets }, direction) => {
      // More packets: more dots, and a little faster ones.
      const tens = Math.log10(packets + 1);
      link.phases[direction] = (link.phases[direction] + (seconds / JOURNEY_S) * (0.6 + 0.16 * tens)) % 1;
      if (packets < 0.05) return;
      const dots = Math.min(DOTS_MAX, Math.max(1, Math.round(2.4 * tens)));
      const size = Math.min(3.8, 1.9 + link.width / 6);
      for (let index = 0; index < dots; index += 1) {
        // Spread evenly however many there are: none jumps where one is added.
        const way = (link.phases[direction] + index * 0.618034 + direction * 0.31) % 1;
        const at = direction === 0 ? way : 1 - way;
        const [x, y, dx, dy] = along(link.curve, at);
        const aside = (direction === 0 ? -1 : 1) * Math.max(1.2, link.width / 4);
        context.globalAlpha = link.alpha * Math.min(1, 8 * way, 8 * (1 - way));
        context.fillStyle = tint;
        context.beginPath();
        const [px, py, sign] = [x - dy * aside, y + dx * aside, direction === 0 ? 1 : -1];
        if (still.matches) arrow(context, px, py, sign * dx, sign * dy);
        else context.arc(px, py, size, 0, 7);
        context.fill();
      }
    });
    context.globalAlpha = 1;
  }

  drawHosts({ context, width }, colours) {
    const isNarrow = width < 600;
    context.textBaseline = "middle";
    context.lineJoin = "round";
    for (const host of this.hosts.values()) {
      context.fillStyle = colours("text");
      context.fillRect(host.x - 2.5, host.y, 5, host.height);
      context.textAlign = isNarrow === (host.side === 0) ? "left" : "right";
      const away = (host.side === 0 ? -1 : 1) * (isNarrow ? -2.5 : 9);
      const y = isNarrow ? host.y - 7 : host.y + host.height / 2;
      const write = (text, line) => {
        context.strokeStyle = colours("panel");
        context.lineWidth = 3;
        context.strokeText(text, host.x + away, line);
        context.fillText(text, host.x + away, line);
      };
      // The rate in a line of its own where there is room for two.
      const isRoomy = !isNarrow && host.height + host.gap >= 27;
      write(short(host.name, isNarrow ? 21 : 26), isRoomy ? y - 7 : y);
      context.fillStyle = colours("dim");
      if (isRoomy) write(bitRate(host.bits), y + 7);
    }
  }

  /** The flow under the pointer. */
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    let [best, nearest] = [9, null];
    for (const link of this.links.values()) {
      if (!link.curve) continue;
      for (let step = 0; step <= 40; step += 1) {
        const [x, y] = along(link.curve, step / 40);
        const distance = Math.hypot(x - px, y - py) - link.width / 2;
        if (distance < best) [best, nearest] = [distance, link.key];
      }
    }
    return nearest;
  }

  /** Shows one flow before the others. */
  point(key) {
    const pointed = key !== null && this.links.has(key) ? key : null;
    if (pointed === this.pointed) return;
    this.pointed = pointed;
    this.say();
    if (!this.moves) this.draw(0);
  }

  say() {
    const link = this.links.get(this.pointed);
    const shown = [...this.links.values()].filter((one) => one.isWanted);
    if (link) {
      const [there, back] = link.rates;
      say(this.caption, `${link.text}: ${bitRate(there.bits)} there, ${bitRate(back.bits)} back, `
        + `${rate(there.packets + back.packets)} packets/s`);
    } else {
      const way = `${still.matches ? "Arrow heads point" : "Dots run"} the way packets go.`;
      const busiest = `The ${shown.length} busiest of ${count(this.total)} flows`;
      const text = `${busiest}. The thicker, the more bits. ${way}`;
      say(this.caption, shown.length === 0 ? "No flow has packets just now." : text);
    }
    const told = shown.slice(0, 5).map((one) => `${one.text}, ${bitRate(bitsOf(one))}`);
    const text = `The busiest flows: ${told.join("; ") || "none"}. The table of flows has all numbers.`;
    this.canvas.setAttribute("aria-label", text);
  }
}

const zero = () => ({ packets: 0, bits: 0 });
const bitsOf = (link) => link.rates[0].bits + link.rates[1].bits;
const nameOf = (flow) => `${end(flow.src_ip, flow.src_port)} ${keyOf(flow)}`;

/** A number from 0 to 1 for a name, always the same. Source: FNV-1a. */
function spread(name) {
  let hash = 0x811c9dc5;
  for (let at = 0; at < name.length; at += 1) hash = Math.imul(hash ^ name.charCodeAt(at), 0x01000193);
  return (hash >>> 0) / 2 ** 32;
}

function short(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 9)}…${text.slice(-8)}`;
}

/** A point of a curve, and the direction there. Source: cubic Bézier curve and its derivative. */
function along([x0, y0, x1, y1, x2, y2, x3, y3], t) {
  const s = 1 - t;
  const mix = (a, b, c, d) => s * s * s * a + 3 * s * s * t * b + 3 * s * t * t * c + t * t * t * d;
  const slope = (a, b, c, d) => 3 * s * s * (b - a) + 6 * s * t * (c - b) + 3 * t * t * (d - c);
  const [dx, dy] = [slope(x0, x1, x2, x3), slope(y0, y1, y2, y3)];
  const length = Math.hypot(dx, dy) || 1;
  return [mix(x0, x1, x2, x3), mix(y0, y1, y2, y3), dx / length, dy / length];
}

function arrow(context, x, y, dx, dy) {
  context.moveTo(x + 5 * dx, y + 5 * dy);
  context.lineTo(x - 3 * dx - 3.4 * dy, y - 3 * dy + 3.4 * dx);
  context.lineTo(x - 3 * dx + 3.4 * dy, y - 3 * dy - 3.4 * dx);
  context.closePath();
}
