// Paints all blocks, colour by colour, for a change of colour is what costs with many. What a block is shows without its colour
// too: held is filled, as high as its tokens are computed, shared has two halves in a frame, cached is an outline, parked is crossed.

import { corner } from "./grid.js";
import { CACHED, FREE, PARKED } from "./ownership.js";

const FAINT = 0.22; // of what is not picked out
const PALE = 0.3; // of what is reserved and not computed yet
const DETAILED = 6; // pixels of a cell from which on frames and halves can be told

export function paint(pen, grid, owned, inks, palette, picked) {
  const colour = (id) => inks.sequences[palette.of(id)];
  const dim = picked === null ? 1 : FAINT;
  const shared = [];
  pen.fillStyle = inks.free;
  each(owned, FREE, (block) => pen.fillRect(...corner(grid, block), grid.cell, grid.cell));
  for (const [id, table] of owned.tables) {
    pen.fillStyle = colour(id);
    for (const block of table) {
      const holders = owned.holders[block];
      if (leader(holders, picked) !== id) continue;
      fill(pen, grid, block, owned.filled[block], alpha(holders, picked, dim));
      if (holders.length > 1) shared.push(block);
    }
  }
  for (const block of shared) {
    const holders = owned.holders[block], first = leader(holders, picked);
    pen.globalAlpha = alpha(holders, picked, dim);
    pen.fillStyle = colour(holders.find(({ id }) => id !== first).id);
    half(pen, grid, block, inks.ink);
  }
  pen.globalAlpha = dim;
  pen.strokeStyle = inks.outline;
  each(owned, CACHED, (block) => outline(pen, grid, block, 1.25));
  each(owned, PARKED, (block) => cross(pen, grid, block));
  pen.globalAlpha = 1;
}

function each(owned, state, act) {
  for (let block = 0; block < owned.total; block += 1) if (owned.state[block] === state) act(block);
}

// Whose colour a block has first: that of the sequence that is picked out, where it holds it.
function leader(holders, picked) {
  return picked !== null && holders.some(({ id }) => id === picked) ? picked : holders[0].id;
}

function alpha(holders, picked, dim) {
  return leader(holders, picked) === picked ? 1 : dim;
}

function fill(pen, grid, block, full, strength) {
  const { cell } = grid, [x, y] = corner(grid, block);
  if (full < 1) {
    pen.globalAlpha = PALE * strength;
    pen.fillRect(x, y, cell, cell);
  }
  pen.globalAlpha = strength;
  pen.fillRect(x, y + cell * (1 - full), cell, cell * full);
}

function half(pen, grid, block, frame) {
  const { cell } = grid, [x, y] = corner(grid, block);
  if (cell < DETAILED) {
    pen.fillStyle = frame; // too small for a frame: a corner
    pen.fillRect(x, y, Math.ceil(cell / 2), Math.ceil(cell / 2));
    return;
  }
  pen.beginPath();
  pen.moveTo(x + cell, y);
  pen.lineTo(x + cell, y + cell);
  pen.lineTo(x, y + cell);
  pen.fill();
  pen.strokeStyle = frame;
  outline(pen, grid, block, 1.5);
}

function outline(pen, grid, block, width) {
  const { cell } = grid, [x, y] = corner(grid, block);
  pen.lineWidth = Math.min(width, cell / 3);
  pen.strokeRect(x + pen.lineWidth / 2, y + pen.lineWidth / 2, cell - pen.lineWidth, cell - pen.lineWidth);
}

function cross(pen, grid, block) {
  const { cell } = grid, [x, y] = corner(grid, block);
  outline(pen, grid, block, 1.25);
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x + cell, y + cell);
  pen.moveTo(x + cell, y);
  pen.lineTo(x, y + cell);
  pen.stroke();
}
