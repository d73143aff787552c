// Everything that an answer changes on the page: figures, map, lists, the table beside the map. One `show` an answer.

import { BlockMap } from "./blockmap.js";
import { byId, element, write } from "./elements.js";
import { whole } from "./format.js";
import { History } from "./history.js";
import { Numbers } from "./numbers.js";
import { ownership, sharedCount } from "./ownership.js";
import { Palette } from "./palette.js";
import { SequenceList, runningLine, waitingLine } from "./sequences.js";

export class View {
  #history = new History();
  #palette = new Palette();
  #numbers = new Numbers(byId("numbers"));
  #map; #running; #waiting;
  #picked = null; // pressed, until it is pressed again or gone
  #pointed = null;
  #focused = null;

  constructor() {
    const actions = {
      point: (id) => {
        this.#pointed = id;
        this.#mark();
      },
      focus: (id) => {
        this.#focused = id;
        this.#mark();
      },
      pick: (id) => this.#pick(id === this.#picked ? null : id),
      gone: (id) => this.#gone(id),
    };
    this.#map = new BlockMap(byId("map"), byId("readout"), this.#palette, (id) => this.#pick(id));
    this.#running = new SequenceList(byId("running"), byId("running-title"), runningLine, actions);
    const none = { point() {}, focus() {}, pick() {}, gone() {} };
    this.#waiting = new SequenceList(byId("waiting"), byId("waiting-title"), waitingLine, none);
  }

  show(answer) {
    this.#history.add(answer);
    this.#palette.assign(answer.running.map(({ id }) => id));
    this.#numbers.show(this.#history, answer);
    this.#running.show(answer.running, this.#palette);
    this.#waiting.show(answer.waiting, this.#palette);
    this.#blocks(answer);
    this.#summaries(answer);
  }

  recolour() {
    this.#map.recolour();
  }

  #blocks(answer) {
    const owned = ownership(answer);
    byId("map-area").hidden = !owned.total;
    this.#map.show(owned);
    const rows = answer.running.map((sequence) => {
      const table = owned.tables.get(sequence.id);
      return [`#${sequence.id}`, table.length, sharedCount(owned, table), sequence.blocks];
    });
    if (answer.blocks) {
      rows.push(["cached", answer.blocks.cached, null, answer.blocks.cached_blocks]);
      if (answer.blocks.parked) rows.push(["parked", answer.blocks.parked, null, answer.blocks.parked_blocks]);
      rows.push(["free", answer.blocks.free, null, "all others"]);
    }
    fill(byId("block-rows"), rows);
  }

  #summaries({ engine, blocks, running, waiting }) {
    const host = blocks?.host.total ? ` · host tier ${whole(blocks.host.used)} of ${whole(blocks.host.total)}` : "";
    const parked = blocks?.parked ? ` · ${whole(blocks.parked)} parked` : "";
    const counts = blocks && `${whole(blocks.held)} held · ${whole(blocks.cached)} cached · ${whole(blocks.free)} free${parked}${host} · ${whole(blocks.size)} tokens each`;
    write(byId("blocks-summary"), counts ?? (engine ? "This engine keeps no cache." : "No engine yet."));
    write(byId("running-summary"), running.length ? count(running.length, "sequence") : "");
    const behind = (engine?.waiting ?? 0) - waiting.length;
    write(byId("waiting-summary"), waiting.length ? `next first${behind > 0 ? ` · ${whole(behind)} more behind` : ""}` : "");
    byId("running-none").hidden = running.length > 0;
    byId("waiting-none").hidden = waiting.length > 0;
  }

  #pick(id) {
    this.#picked = id;
    this.#mark();
  }

  #gone(id) {
    if (this.#pointed === id) this.#pointed = null;
    if (this.#focused === id) this.#focused = null;
    if (this.#picked === id) this.#picked = null;
    this.#mark();
  }

  #mark() {
    this.#map.pick(this.#pointed ?? this.#focused ?? this.#picked);
    this.#running.pick(this.#picked);
  }
}

const count = (number, thing) => `${whole(number)} ${thing}${number === 1 ? "" : "s"}`;

// Cells are kept and rewritten; a table that is closed is not touched.
function fill(body, rows) {
  if (!body.closest("details").open) return;
  while (body.rows.length > rows.length) body.lastChild.remove();
  rows.forEach(([whose, blocks, shared, numbers], index) => {
    const row = body.rows[index] ?? body.appendChild(newRow());
    const [head, ...cells] = row.children;
    write(head, whose);
    [whole(blocks), shared === null ? "–" : whole(shared), numbers.replaceAll(",", ", ") || "–"].forEach((text, place) => write(cells[place], text));
  });
}

function newRow() {
  const head = element("th");
  head.scope = "row";
  return element("tr", "", head, element("td", "number"), element("td", "number"), element("td", "blocks"));
}
