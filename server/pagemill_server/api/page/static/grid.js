// Where each block of the map lies. Pure geometry, in CSS pixels; cells begin on whole ones, so that their edges are sharp.

const LARGEST = 32, SMALLEST = 4;
const HEIGHT = 420; // what the map would like to stay below

export function gridFor(total, width) {
  const wanted = Math.floor(Math.sqrt((width * HEIGHT) / Math.max(1, total)));
  const about = Math.max(SMALLEST, Math.min(LARGEST, wanted)); // a cell and the gap behind it
  const gap = about >= 9 ? 2 : 1;
  let columns = Math.max(1, Math.floor((width + gap) / about));
  if (columns > 16) columns -= columns % 8; // so that a row's first number is easy to reckon
  const pitch = (width + gap) / columns; // wider than asked for, so that a row fills the width
  const rows = Math.ceil(total / columns);
  return { total, pitch, cell: Math.floor(pitch - gap), columns, rows, height: Math.max(1, Math.ceil(rows * pitch - gap)) };
}

export function cellAt(grid, x, y) {
  const column = Math.floor(x / grid.pitch), row = Math.floor(y / grid.pitch);
  const block = row * grid.columns + column;
  return column >= 0 && column < grid.columns && row >= 0 && block < grid.total ? block : null;
}

export function corner(grid, block) {
  return [Math.round((block % grid.columns) * grid.pitch), Math.round(Math.floor(block / grid.columns) * grid.pitch)];
}

// Where a key takes the cursor; null for a key that is not the map's.
export function moved(grid, block, key) {
  const rows = 10 * grid.columns;
  const steps = {
    ArrowRight: 1, ArrowLeft: -1, ArrowDown: grid.columns, ArrowUp: -grid.columns, PageDown: rows, PageUp: -rows,
    Home: -block, End: grid.total - 1 - block,
  };
  if (!(key in steps)) return null;
  const target = block + steps[key];
  if (Math.abs(steps[key]) > 1 && key.startsWith("Arrow")) return target < 0 || target >= grid.total ? block : target;
  return Math.max(0, Math.min(grid.total - 1, target));
}
