// The block map: a canvas, so that a hundred thousand blocks stay fluid, that is a slider over the block numbers to the keyboard
// and to a screen reader. Shows what `ownership` says; tells `onPick` which sequence a person has chosen. The blocks are painted
// when they have changed, on a layer; pointer and cursor are drawn over it.

import { cellAt, corner, gridFor, moved } from "./grid.js";
import { describe } from "./ownership.js";
import { paint } from "./paint.js";
import { inks } from "./palette.js";

export class BlockMap {
  #canvas; #readout; #palette; #onPick;
  #owned = null; #grid = null; #inks = null;
  #picked = null; #cursor = 0; #hovered = null; #scheduled = false;
  #layer = document.createElement("canvas"); #stale = true;

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
    this.#repaint();
  }

  // Pick out a sequence's blocks; null: none.
  pick(id) {
    if (id === this.#picked) return;
    this.#picked = id;
    this.#repaint();
  }

  // The colours have changed.
  recolour() {
    this.#inks = null;
    this.#repaint();
  }

  #repaint() {
    this.#stale = true;
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
    this.#say();
    this.redraw();
  }

  #draw() {
    const canvas = this.#canvas, owned = this.#owned;
    const width = canvas.parentElement.clientWidth, ratio = devicePixelRatio || 1;
    if (!width) return; // nobody sees it; when it shows again, its size changes
    const [across, down] = [Math.round(width * ratio), Math.round(gridFor(owned.total, width).height * ratio)];
    if (canvas.width !== across || canvas.height !== down || this.#stale) {
      const grid = (this.#grid = gridFor(owned.total, width));
      for (const each of [canvas, this.#layer]) [each.width, each.height] = [across, down];
      canvas.style.height = `${grid.height}px`;
      this.#inks ??= inks();
      paint(scaled(this.#layer, ratio), grid, owned, this.#inks, this.#palette, this.#picked);
      this.#stale = false;
    }
    const pen = scaled(canvas, 1);
    pen.clearRect(0, 0, across, down);
    pen.drawImage(this.#layer, 0, 0);
    pen.scale(ratio, ratio);
    this.#mark(pen, this.#hovered, 1.5, this.#inks.ink);
    if (canvas.matches(":focus-visible")) this.#mark(pen, this.#cursor, 2.5, this.#inks.accent);
    this.#say();
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

function scaled(canvas, ratio) {
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}
