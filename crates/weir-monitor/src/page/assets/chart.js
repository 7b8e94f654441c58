// Charts of the last five minutes: a line with its area, or bands on top of each other.

import { colour, duration, theme } from "./units.js";

const SPAN_MS = 300_000;
const PLOT = { left: 0, right: 0, top: 8, bottom: 17 };

/** A canvas in device pixels, cleared. Nothing where it is not shown. */
export function surface(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  if (w === 0 || h === 0) return null;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  return { context, width, height };
}

/** The next of 1, 1.5, 2, 3 and so on: a scale whose half reads well, too. */
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.9999);
}

function axes({ context, width, height }, top, unit) {
  const colours = theme();
  const bottom = height - PLOT.bottom;
  const y = (value) => bottom - (value / top) * (bottom - PLOT.top);
  context.lineWidth = 1;
  context.textBaseline = "bottom";
  for (const part of [0, 0.5, 1]) {
    const line = Math.round(y(top * part)) + 0.5;
    context.strokeStyle = colours(part === 0 ? "dim" : "line");
    context.beginPath();
    context.moveTo(PLOT.left, line);
    context.lineTo(width, line);
    context.stroke();
  }
  context.fillStyle = colours("dim");
  context.textBaseline = "top";
  for (let minute = 0; minute <= 5; minute += 1) {
    context.textAlign = minute === 5 ? "left" : minute === 0 ? "right" : "center";
    const text = minute === 0 ? "now" : `${minute} min ago`;
    const narrow = width < 420 && minute % 2 === 0 && minute > 0;
    if (!narrow) context.fillText(text, width - (minute / 5) * width, bottom + 4);
  }
  // Above what is drawn later, with a rim so that it can be read there.
  const labels = () => {
    context.textAlign = "left";
    context.textBaseline = "top";
    context.lineJoin = "round";
    for (const part of [0.5, 1]) {
      context.strokeStyle = colours("panel");
      context.lineWidth = 3;
      context.strokeText(unit(top * part), 2, y(top * part) + 2);
      context.fillStyle = colours("dim");
      context.fillText(unit(top * part), 2, y(top * part) + 2);
    }
  };
  return { y, bottom, colours, labels };
}

/** Where moments are, the newest at the right. */
function placed(moments, width) {
  const end = moments.length ? moments[moments.length - 1].at_ms : 0;
  const x = (moment) => width - ((end - moment.at_ms) / SPAN_MS) * width;
  const first = moments.findIndex((moment) => x(moment) >= 0);
  return { shown: first < 0 ? [] : moments.slice(Math.max(0, first - 1)), x };
}

/** The pointer's place in a chart, by its canvas. `redraw` is called where it changes. */
const pointers = new WeakMap();
export function follow(canvas, redraw) {
  canvas.addEventListener("pointermove", (event) => { pointers.set(canvas, event.offsetX); redraw(); });
  canvas.addEventListener("pointerleave", () => { pointers.delete(canvas); redraw(); });
}

/** The value below the pointer, with its time. */
function readout({ context, width }, shown, { x, y, bottom, colours }, field, name, unit) {
  const last = shown[shown.length - 1];
  const moment = shown.reduce((best, one) => {
    const far = (other) => Math.abs(x(other) - pointers.get(context.canvas));
    return far(one) < far(best) ? one : best;
  }, last);
  const at = x(moment);
  context.fillStyle = colours("dim");
  context.fillRect(Math.round(at), PLOT.top, 1, bottom - PLOT.top);
  context.fillStyle = colours(name);
  context.beginPath();
  context.arc(at, y(moment[field]), 4, 0, 7);
  context.fill();
  const lost = moment.lost > 0 ? `, ${Math.ceil(moment.lost)} frames/s lost` : "";
  const text = `${unit(moment[field])}, ${duration((last.at_ms - moment.at_ms) / 1000)} ago${lost}`;
  const isLeft = at > width / 2;
  context.textAlign = isLeft ? "right" : "left";
  context.textBaseline = "top";
  context.strokeStyle = colours("panel");
  context.lineWidth = 4;
  context.strokeText(text, at + (isLeft ? -8 : 8), PLOT.top + 2);
  context.fillStyle = colours("text");
  context.fillText(text, at + (isLeft ? -8 : 8), PLOT.top + 2);
}

/** One count of each moment, as a line. Moments in which frames were lost have a mark. */
export function line(canvas, moments, field, name, unit) {
  const drawn = surface(canvas);
  if (!drawn) return;
  const { context, width } = drawn;
  const { shown, x } = placed(moments, width);
  const top = ceiling(shown.reduce((most, moment) => Math.max(most, moment[field]), 0));
  const { y, bottom, colours, labels } = axes(drawn, top, unit);
  const path = () => {
    context.beginPath();
    shown.forEach((moment, index) => {
      if (index === 0) context.moveTo(x(moment), y(moment[field]));
      else context.lineTo(x(moment), y(moment[field]));
    });
  };
  if (shown.length > 0) {
    path();
    context.lineTo(width, bottom);
    context.lineTo(x(shown[0]), bottom);
    context.globalAlpha = 0.13;
    context.fillStyle = colours(name);
    context.fill();
    context.globalAlpha = 1;
    path();
    context.strokeStyle = colours(name);
    context.lineWidth = 1.6;
    context.lineJoin = "round";
    context.stroke();
    const last = shown[shown.length - 1];
    context.beginPath();
    context.arc(width - 3, y(last[field]), 3, 0, 7);
    context.fillStyle = colours(name);
    context.fill();
    canvas.setAttribute("aria-label", `${field} a second, now ${unit(last[field])}, scale to ${unit(top)}`);
  }
  context.fillStyle = colours("bad");
  for (const moment of shown) if (moment.lost > 0) context.fillRect(x(moment) - 2, bottom - 5, 3, 5);
  labels();
  if (pointers.has(canvas) && shown.length > 0) readout(drawn, shown, { x, y, bottom, colours }, field, name, unit);
}

/** Bits of each protocol, on top of each other. */
export function bands(canvas, moments, names, unit) {
  const drawn = surface(canvas);
  if (!drawn) return;
  const { context, width } = drawn;
  const { shown, x } = placed(moments, width);
  const all = (moment) => moment.protocols.reduce((sum, [, bits]) => sum + bits, 0);
  const top = ceiling(shown.reduce((most, moment) => Math.max(most, all(moment)), 0));
  const { y, colours, labels } = axes(drawn, top, unit);
  const floor = shown.map(() => 0);
  const rest = new Set(names);
  for (const name of [...names, "other"]) {
    const roof = shown.map((moment, index) => {
      const own = moment.protocols.filter(([one]) => (name === "other" ? !rest.has(one) : one === name));
      return floor[index] + own.reduce((sum, [, bits]) => sum + bits, 0);
    });
    context.beginPath();
    shown.forEach((moment, index) => context.lineTo(x(moment), y(roof[index])));
    for (let index = shown.length - 1; index >= 0; index -= 1) context.lineTo(x(shown[index]), y(floor[index]));
    context.fillStyle = colours(`p${colour(name)}`);
    context.globalAlpha = 0.82;
    context.fill();
    context.globalAlpha = 1;
    roof.forEach((value, index) => { floor[index] = value; });
  }
  labels();
  const told = `Bits a second by protocol over five minutes: ${names.join(", ")}. The table has the numbers.`;
  canvas.setAttribute("aria-label", told);
}
