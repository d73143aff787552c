// The block map: a canvas, so that a hundred thousand blocks stay fluid, that is a slider over the block numbers to the keyboard
// and to a screen reader. Draws what `ownership` says; tells `onPick` which sequence a person has chosen.

import { cellAt, corner, gridFor, moved } from "./grid.js";
import { CACHED, FREE, HELD, describe } from "./ownership.js";
import { inks } from "./palette.js";

const FAINT = 0.22; // of what is not picked out
const DETAILED = 6; // pixels of a cell from which on frames and halves can be told

export class BlockMap {
  #canvas; #readout; #palette; #onPick;
  #owned = null; #grid = null; #inks = null;
  #picked = null; #cursor = 0; #hovered = null; #scheduled = false;

  constructor(canvas, readout, palette, onPick) {
    [this.#canvas, this.#readout, this.#palette, this.#onPick] = [canvas, readout, palette, onPick];
    new ResizeObserver(() => this.redraw()).observe(canvas.parentElement);
    canvas.addEventListener("pointermove", (event) => this.#hover(this.#at(event)));
    canvas.addEventListener("pointerleave", () => this.#hover(null));
    canvas.addEventListener("click", (event) => this.#choose(this.#at(event)));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => this.redraw());
  }

  show(owned) {
    this.#owned = owned;
    this.#cursor = Math.min(this.#cursor, Math.max(0, owned.total - 1));
    this.redraw();
  }

  // Pick out a sequence's blocks; null: none.
  pick(id) {
    this.#picked = id;
    this.redraw();
  }

  // The colours have changed.
  recolour() {
    this.#inks = null;
    this.redraw();
  }

  // Once a frame at most, whatever asks for it.
  redraw() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      if (this.#owned) this.#draw();
    });
  }

  #at(event) {
    const box = this.#canvas.getBoundingClientRect();
    return this.#grid && cellAt(this.#grid, event.clientX - box.left, event.clientY - box.top);
  }

  #hover(block) {
    if (block === this.#hovered) return;
    this.#hovered = block;
    this.redraw();
  }

  #choose(block) {
    if (block === null) return;
    this.#cursor = block;
    const holders = this.#owned.holders[block] ?? [];
    // Again on a shared block: the next of those that hold it.
    const next = holders[(holders.findIndex(({ id }) => id === this.#picked) + 1) % (holders.length || 1)];
    this.#onPick(next && next.id !== this.#picked ? next.id : null);
  }

  #key(event) {
    if (!this.#owned?.total || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = moved(this.#grid, this.#cursor, event.key);
    if (target !== null) this.#cursor = target;
    else if (event.key === "Enter" || event.key === " ") this.#choose(this.#cursor);
    else if (event.key === "Escape") this.#onPick(null);
    else return;
    event.preventDefault();
    this.redraw();
  }

  #draw() {
    const canvas = this.#canvas, owned = this.#owned;
    const width = canvas.parentElement.clientWidth, ratio = devicePixelRatio || 1;
    const grid = (this.#grid = gridFor(owned.total, width));
    this.#inks ??= inks();
    const [across, down] = [Math.round(width * ratio), Math.round(grid.height * ratio)];
    if (canvas.width !== across || canvas.height !== down) {
      [canvas.width, canvas.height] = [across, down];
      canvas.style.height = `${grid.height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, grid.height);
    for (let block = 0; block < owned.total; block += 1) this.#cell(pen, block);
    this.#mark(pen, this.#hovered, 1.5, this.#inks.ink);
    if (canvas.matches(":focus-visible")) this.#mark(pen, this.#cursor, 2.5, this.#inks.accent);
    this.#say();
  }

  #cell(pen, block) {
    const { cell } = this.#grid, [x, y] = corner(this.#grid, block), state = this.#owned.state[block];
    const holders = this.#owned.holders[block];
    const others = this.#picked !== null && !holders?.some(({ id }) => id === this.#picked);
    pen.globalAlpha = others ? FAINT : 1;
    if (state === FREE) {
      pen.fillStyle = this.#inks.free;
      pen.globalAlpha = 1;
      pen.fillRect(x, y, cell, cell);
    } else if (state === HELD) {
      this.#held(pen, x, y, cell, block, holders);
    } else {
      this.#outline(pen, x, y, cell, this.#inks.outline, 1.25);
      if (state !== CACHED) this.#cross(pen, x, y, cell);
    }
    pen.globalAlpha = 1;
  }

  // As full as the block is, from below; what is reserved and not computed yet is pale.
  #held(pen, x, y, cell, block, holders) {
    const colours = this.#inks.sequences, full = this.#owned.filled[block];
    const alpha = pen.globalAlpha;
    // Of a sequence that is picked out, its own colour first.
    const first = holders.find(({ id }) => id === this.#picked) ?? holders[0];
    pen.fillStyle = colours[this.#palette.of(first.id)];
    pen.globalAlpha = 0.3 * alpha;
    pen.fillRect(x, y, cell, cell);
    pen.globalAlpha = alpha;
    const height = cell * full;
    pen.fillRect(x, y + cell - height, cell, height);
    if (holders.length < 2) return;
    const second = holders.find((holder) => holder !== first);
    if (cell >= DETAILED) {
      pen.fillStyle = colours[this.#palette.of(second.id)];
      pen.beginPath();
      pen.moveTo(x + cell, y);
      pen.lineTo(x + cell, y + cell);
      pen.lineTo(x, y + cell);
      pen.fill();
      this.#outline(pen, x, y, cell, this.#inks.ink, 1.5);
    } else {
      pen.fillStyle = this.#inks.ink; // too small for a frame: a corner
      pen.fillRect(x, y, Math.ceil(cell / 2), Math.ceil(cell / 2));
    }
  }

  #outline(pen, x, y, cell, colour, width) {
    pen.strokeStyle = colour;
    pen.lineWidth = Math.min(width, cell / 3);
    pen.strokeRect(x + pen.lineWidth / 2, y + pen.lineWidth / 2, cell - pen.lineWidth, cell - pen.lineWidth);
  }

  #cross(pen, x, y, cell) {
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x + cell, y + cell);
    pen.moveTo(x + cell, y);
    pen.lineTo(x, y + cell);
    pen.stroke();
  }

  #mark(pen, block, width, colour) {
    if (block === null || block >= this.#owned.total) return;
    const [x, y] = corner(this.#grid, block), { cell } = this.#grid;
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.strokeRect(x - 1, y - 1, cell + 2, cell + 2);
  }

  // The line below says what the pointer or the cursor is on; a screen reader hears the cursor's as the slider's value.
  #say() {
    const { total } = this.#owned, canvas = this.#canvas;
    const at = this.#hovered ?? (canvas.matches(":focus-visible") ? this.#cursor : null);
    const line = at === null || at >= total ? "\u00a0" : describe(this.#owned, at);
    if (this.#readout.textContent !== line) this.#readout.textContent = line;
    const value = total ? describe(this.#owned, this.#cursor) : "no blocks yet";
    const told = { "aria-valuemax": String(Math.max(0, total - 1)), "aria-valuenow": String(this.#cursor), "aria-valuetext": value };
    for (const [name, text] of Object.entries(told)) if (canvas.getAttribute(name) !== text) canvas.setAttribute(name, text);
  }
}
