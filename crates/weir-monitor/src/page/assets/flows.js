// The table of flows: sorted by a click on a column, searched by what is typed.

import { keyOf } from "./picture.js";
import { bitRate, bytes, count, duration, each, end, make, rate, say } from "./units.js";

const find = (id) => document.getElementById(id);
const age = (flow) => Math.max(0, (flow.end_ms - flow.start_ms) / 1000);
const both = (field) => (flow) => flow[field] + flow.reverse[field];
const where = (flow) => [flow.interface, flow.owner].filter(Boolean).join(" · ");

/** Title, what it sorts by, what it shows, classes. Numbers begin with the largest. */
const COLUMNS = [
  ["Protocol", (flow) => flow.proto_name, (flow) => flow.proto_name, ""],
  ["From", (flow) => end(flow.src_ip, flow.src_port), (flow) => end(flow.src_ip, flow.src_port), "address"],
  ["To", (flow) => end(flow.dst_ip, flow.dst_port), (flow) => end(flow.dst_ip, flow.dst_port), "address"],
  ["Rate", (flow) => flow.rates.bits, (flow) => bitRate(flow.rates.bits), "n"],
  ["Packets/s", (flow) => flow.rates.packets, (flow) => rate(flow.rates.packets), "n wide"],
  ["Packets", both("packets"), (flow) => count(both("packets")(flow)), "n wide"],
  ["Bytes", both("bytes"), (flow) => bytes(both("bytes")(flow)), "n wide"],
  ["Lasts", age, (flow) => duration(age(flow)), "n wide"],
  ["Interface", where, where, "wide address"],
  ["VLAN", (flow) => flow.vlan ?? -1, (flow) => (flow.vlan === null ? "" : String(flow.vlan)), "n wide"],
];

const cellOf = ([, , , classes], index) =>
  (index === 1 || index === 2 ? make("td", classes, make("span"), make("span")) : make("td", classes));

export class Flows {
  /** `pointAt` is called with the key of the flow under the pointer, or null. */
  constructor(pointAt) {
    this.flows = [];
    this.column = 3;
    this.isDown = true;
    this.leftOut = 0;
    this.buttons = COLUMNS.map(([title, , , classes], index) => {
      const button = make("button", "", title, make("span"));
      button.type = "button";
      button.lastChild.ariaHidden = "true";
      button.addEventListener("click", () => this.sortBy(index));
      const th = make("th", classes, button);
      th.scope = "col";
      find("flows-head").append(th);
      return button;
    });
    find("search").addEventListener("input", () => this.show());
    const body = find("flows");
    body.addEventListener("pointerover", (event) => pointAt(event.target.closest("tr")?.dataset.key ?? null));
    body.addEventListener("pointerleave", () => pointAt(null));
    this.show();
  }

  update(view) {
    this.flows = view.flows;
    this.leftOut = view.flows_left_out;
    this.show();
  }

  sortBy(index) {
    const isNumber = typeof COLUMNS[index][1](this.flows[0] ?? { rates: {}, reverse: {} }) === "number";
    this.isDown = this.column === index ? !this.isDown : isNumber;
    this.column = index;
    this.show();
  }

  show() {
    const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const named = COLUMNS.filter((_, index) => index < 3 || index > 7);
    const text = (flow) => named.map(([, , shown]) => shown(flow)).join(" ");
    const found = this.flows.filter((flow) => {
      const own = text(flow).toLowerCase();
      return words.every((word) => own.includes(word));
    });
    const by = COLUMNS[this.column][1];
    const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
    found.sort((a, b) => (this.isDown ? -1 : 1) * compare(by(a), by(b)));
    this.buttons.forEach((button, index) => {
      const isOwn = index === this.column;
      say(button.lastChild, isOwn ? (this.isDown ? "▾" : "▴") : "");
      if (isOwn) button.parentElement.setAttribute("aria-sort", this.isDown ? "descending" : "ascending");
      else button.parentElement.removeAttribute("aria-sort");
    });
    each(find("flows"), found, () => make("tr", "", ...COLUMNS.map(cellOf)), (tr, flow) => {
      tr.dataset.key = keyOf(flow);
      COLUMNS.forEach(([, , shown], index) => {
        const cell = tr.children[index];
        const own = shown(flow);
        if (index === 1 || index === 2) {
          // The port is a part of its own: a narrow screen breaks the line before it.
          const hasPort = (index === 1 ? flow.src_port : flow.dst_port) !== null;
          const at = hasPort ? own.lastIndexOf(":") : own.length;
          say(cell.firstChild, own.slice(0, at));
          say(cell.lastChild, own.slice(at));
        } else say(cell, own);
        if (cell.classList.contains("address") && cell.title !== own) cell.title = own;
      });
    });
    const others = this.leftOut > 0 ? `; ${count(this.leftOut)} with less traffic are in the table and not here` : "";
    const shown = count(this.flows.length);
    const own = words.length > 0 ? `${count(found.length)} of ${shown} match` : `${shown} shown`;
    say(find("flows-count"), own + others);
  }
}
