// From an answer of /debug/blocks to what the map draws: for each block who holds it and how full it is. Pure.

import { parse } from "./runs.js";

export const FREE = 0, HELD = 1, CACHED = 2, PARKED = 3;

export function ownership(answer) {
  const { blocks, running } = answer;
  const total = blocks?.total ?? 0;
  const state = new Uint8Array(total);
  const filled = new Float32Array(total); // share of its slots that are computed
  const holders = new Array(total); // sequences, in order of admission
  for (const block of parse(blocks?.cached_blocks ?? "")) state[block] = CACHED;
  for (const block of parse(blocks?.parked_blocks ?? "")) state[block] = PARKED;
  const tables = new Map(); // by sequence id
  for (const sequence of running) {
    const table = parse(sequence.blocks);
    tables.set(sequence.id, table);
    table.forEach((block, place) => {
      state[block] = HELD;
      (holders[block] ??= []).push(sequence);
      const computed = (sequence.computed_tokens - place * blocks.size) / blocks.size;
      filled[block] = Math.max(filled[block], Math.min(1, Math.max(0, computed)));
    });
  }
  return { total, size: blocks?.size ?? 0, state, filled, holders, tables };
}

export function sharedCount(owned, table) {
  return table.filter((block) => owned.holders[block].length > 1).length;
}

// One block in words, for the line below the map and for a screen reader.
export function describe(owned, block) {
  const state = owned.state[block];
  const name = `Block ${block}`;
  if (state === FREE) return `${name}: free`;
  if (state === CACHED) return `${name}: cached, held by nobody`;
  if (state === PARKED) return `${name}: parked until a copy into it is done`;
  const holders = owned.holders[block];
  const place = owned.tables.get(holders[0].id).indexOf(block) * owned.size;
  const tokens = `tokens ${place} to ${place + owned.size - 1}`;
  const who = holders.length === 1 ? `held by #${holders[0].id}` : `shared by ${holders.map(({ id }) => `#${id}`).join(", ")}`;
  const part = owned.filled[block];
  return `${name}: ${who}, ${tokens}${part < 1 ? `, ${Math.round(part * owned.size)} of ${owned.size} computed` : ""}`;
}
