// The panels of figures, losses, talkers, protocols, the flow table and exports.

import { bitRate, bytes, colour, count, duration, each, make, rate, say, share } from "./units.js";

const find = (id) => document.getElementById(id);
const TALKERS_SHOWN = 9;

/** A row whose first cell names it. Classes are those of the cells. */
function row(...classes) {
  return () => make("tr", "", ...classes.map((one, index) => {
    const cell = make(index === 0 ? "th" : "td", one);
    if (index === 0) cell.scope = "row";
    return cell;
  }));
}

function fill(tr, texts) {
  texts.forEach((text, index) => {
    if (text === null) return;
    const cell = tr.children[index];
    say(cell, text);
    // A long one is cut off where it is shown.
    const isCut = cell.classList.contains("address") || cell.classList.contains("name");
    if (isCut && cell.title !== text) cell.title = text;
  });
}

/** Frames lost, by place and source, most first. What was missed before the hook is not among them: it was never offered. */
export function losses(view) {
  const all = view.sources.flatMap((source) =>
    Object.entries(source.drops).map(([place, frames]) => ({ place, source: source.name, frames })));
  all.push({ place: "the monitor was too slow", source: "all", frames: view.lapped });
  return all.filter(({ frames }) => frames > 0).sort((a, b) => b.frames - a.frames);
}

/** Frames that were lost before the hook, as far as that is known. */
function missed(view) {
  return view.sources.reduce((sum, source) => sum + (source.missed_before ?? 0), 0);
}

export function figures(view) {
  const { rates, table, delivered } = view;
  say(find("now-bits"), bitRate(rates.bits));
  say(find("all-bytes"), `${bytes(delivered.bytes)} in ${duration(view.uptime_s)}`);
  say(find("now-packets"), `${rate(rates.packets)} /s`);
  say(find("all-packets"), `${count(delivered.packets)} counted`);
  say(find("now-flows"), count(table.flows));
  say(find("now-fill"), `${share(table.flows, table.capacity)} of the table`);
  say(find("now-began"), `${rate(table.began_per_second)} /s`);
  say(find("all-began"), `${count(table.began)} since the start`);
  const lost = losses(view).reduce((sum, { frames }) => sum + frames, 0);
  const box = find("now-loss");
  box.classList.toggle("is-bad", lost > 0);
  const before = missed(view);
  box.classList.toggle("is-good", lost === 0 && before === 0);
  say(find("now-lost"), lost === 0 ? "none" : `${count(lost)} frames`);
  const now = view.lost_per_second > 0 ? `${rate(view.lost_per_second)} a second now` : "none just now";
  const none = before === 0 ? "every frame is accounted for" : `${count(before)} missed before the hook`;
  say(find("all-lost"), lost === 0 ? none : now);
}

export function loss(view) {
  const all = losses(view);
  const lost = all.reduce((sum, { frames }) => sum + frames, 0);
  const verdict = find("verdict");
  const before = missed(view);
  verdict.className = lost > 0 ? "is-bad" : before > 0 ? "" : "is-good";
  const of = view.sources.reduce((sum, source) => sum + source.offered, 0);
  say(verdict, lost === 0 ? "No frame lost" : `${count(lost)} frames lost, ${share(lost, of)} of all`);
  find("places-region").hidden = lost === 0;
  const most = Math.max(1, ...all.map(({ frames }) => frames));
  each(find("places"), all, () => {
    const tr = row("name", "name", "n is-bad", "gauge")();
    tr.children[3].append(make("div", "share"));
    return tr;
  }, (tr, { place, source, frames }) => {
    fill(tr, [place, source, count(frames), null]);
    tr.children[3].firstChild.style.width = `${(frames / most) * 100}%`;
  });
  ledger(view.sources);
}

/** What became of every frame of each source. Columns of what nobody asked for are left out. */
function ledger(sources) {
  const uses = (field) => sources.some((source) => source[field] > 0);
  const dropped = (source) => Object.values(source.drops).reduce((sum, frames) => sum + frames, 0);
  const columns = [
    ["Source", (source) => source.name],
    ["Engine", (source) => source.engine],
    ["Lost", (source) => count(dropped(source))],
    ["Offered", (source) => count(source.offered)],
    ["Captured", (source) => count(source.captured)],
    ["Filtered", (source) => count(source.filtered)],
    ...(uses("blocked") ? [["Blocked", (source) => count(source.blocked)]] : []),
    ...(uses("sampled") ? [["Left out by sampling", (source) => count(source.sampled)]] : []),
  ];
  const titles = columns.map(([title]) => title);
  const head = find("ledger-head");
  if (head.dataset.titles !== titles.join()) {
    head.dataset.titles = titles.join();
    head.replaceChildren(...titles.map((title, index) => {
      const th = make("th", index > 1 ? "n" : index === 1 ? "wide" : "", title);
      th.scope = "col";
      return th;
    }));
    find("ledger").replaceChildren();
  }
  fates(sources, dropped);
  each(find("ledger"), sources, row("name", "wide", ...titles.slice(2).map(() => "n")), (tr, source) => {
    fill(tr, columns.map(([, text]) => text(source)));
    tr.children[2].classList.toggle("is-bad", dropped(source) > 0);
  });
  const unknown = sources.filter((source) => source.missed_before === null).map((source) => source.name);
  const others = unknown.length > 3 ? ` and ${unknown.length - 3} others` : "";
  const text = `Not known: what the NIC of ${unknown.slice(0, 3).join(", ")}${others} lost before the hook.`;
  const before = sources.filter((source) => source.missed_before > 0);
  const known = before.map((source) => `${source.name} missed ${count(source.missed_before)} frames before the hook.`);
  say(find("missed"), [...known, ...(unknown.length === 0 ? [] : [text])].join(" "));
}

/** A bar for each source. What was lost can be seen however little it is. */
function fates(sources, dropped) {
  const parts = () => ["captured", "left-out", "lost"].map((what) => make("i", `fate-${what}`));
  const newBar = () => make("div", "fate", make("span"), make("div", "whole", ...parts()));
  each(find("fates"), sources, newBar, (bar, source) => {
    say(bar.firstChild, source.name);
    const lost = dropped(source);
    const frames = [source.captured, source.filtered + source.blocked + source.sampled, lost];
    frames.forEach((part, index) => { bar.lastChild.children[index].style.flexGrow = String(part); });
    bar.lastChild.lastChild.hidden = lost === 0;
  });
}

export function talkers(view) {
  const top = view.talkers.slice(0, TALKERS_SHOWN);
  const most = Math.max(1, ...top.flatMap(({ sent, received }) => [sent.bits, received.bits]));
  // Two rows each: numbers, and bars below them.
  const rows = top.flatMap((talker) => [{ talker, isBars: false }, { talker, isBars: true }]);
  each(find("talkers"), rows, ({ isBars }) => {
    if (!isBars) return row("address", "n", "n", "n wide")();
    const cell = make("td", "bars", make("div", "sent"), make("div", "received"));
    cell.colSpan = 4;
    const tr = make("tr", "", cell);
    tr.setAttribute("aria-hidden", "true");
    return tr;
  }, (tr, { talker, isBars }) => {
    if (isBars) {
      const [sent, received] = tr.firstChild.children;
      sent.style.width = `${(talker.sent.bits / most) * 100}%`;
      received.style.width = `${(talker.received.bits / most) * 100}%`;
    } else {
      fill(tr, [talker.address, bitRate(talker.sent.bits), bitRate(talker.received.bits), count(talker.flows)]);
    }
  });
}

export function protocols(view) {
  each(find("protocols"), view.protocols.slice(0, 8), () => {
    const tr = row("", "n", "n", "n")();
    tr.firstChild.append(make("span", "key"), make("span"));
    return tr;
  }, (tr, protocol) => {
    const [key, name] = tr.firstChild.children;
    key.style.background = `var(--p${colour(protocol.name)})`;
    say(name, protocol.name);
    const { rates } = protocol;
    fill(tr, [null, bitRate(rates.bits), `${rate(rates.packets)} /s`, bytes(protocol.bytes)]);
  });
}

const REASONS = {
  arp: "ARP",
  other_protocol: "another protocol than IP",
  cut_off: "headers cut off",
  malformed: "malformed headers",
  too_many_vlans: "too many VLAN tags",
  other_link_type: "neither Ethernet nor raw IP",
};

export function health(view) {
  const { table } = view;
  find("fill").value = table.capacity > 0 ? table.flows / table.capacity : 0;
  say(find("fill-text"), `${share(table.flows, table.capacity)} of ${count(table.capacity)}`);
  const reasons = Object.entries(table.not_flows).filter(([, frames]) => frames > 0);
  const lines = [
    ["Began", `${rate(table.began_per_second)} /s`, false],
    ["Ended early, for another", count(table.evicted), table.evicted > 0],
    ["Records so far", count(view.records), false],
    ...reasons.map(([reason, frames]) => [`Frames without a flow: ${REASONS[reason] ?? reason}`, count(frames), false]),
    ["Fragments, ports known", count(table.fragments_attributed), false],
    ["Fragments, ports unknown", count(table.fragments_unattributed), false],
    ["Fragmented packets forgotten", count(table.fragments_forgotten), false],
    ["Clock steps", count(table.clock_steps_ahead + table.clock_steps_back), false],
  ];
  const parts = lines.flatMap(([name, text, isBad]) => [{ tag: "dt", text: name }, { tag: "dd", text, isBad }]);
  each(find("health"), parts, ({ tag }) => make(tag), (element, { text, isBad }) => {
    say(element, text);
    element.classList.toggle("is-bad", Boolean(isBad));
  });
}

export function exported(view) {
  const { exports } = view;
  find("no-exports").hidden = exports.length > 0;
  find("exports-table").hidden = exports.length === 0;
  each(find("exports"), exports, row("address", "n", "n", ""), (tr, one) => {
    fill(tr, [one.name, count(one.sent), count(one.unsent), one.has_failed ? "failed" : "works"]);
    tr.children[2].classList.toggle("is-bad", one.unsent > 0);
    tr.children[3].classList.toggle("is-bad", one.has_failed);
  });
}
