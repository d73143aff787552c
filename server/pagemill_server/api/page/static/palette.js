// Which colour a sequence has, and what the stylesheet's colours are just now. A sequence keeps its colour for its life; the
// colours themselves are page.css's, so that lists, legend and map agree in both schemes.

export const COLOURS = 12;

export class Palette {
  #given = new Map(); // sequence id to colour

  // Give colours to these sequences and take them from all others: a newcomer gets the one that fewest have.
  assign(ids) {
    const present = new Set(ids);
    for (const id of this.#given.keys()) if (!present.has(id)) this.#given.delete(id);
    const counts = new Array(COLOURS).fill(0);
    for (const colour of this.#given.values()) counts[colour] += 1;
    for (const id of ids) {
      if (this.#given.has(id)) continue;
      const colour = counts.indexOf(Math.min(...counts));
      counts[colour] += 1;
      this.#given.set(id, colour);
    }
  }

  of(id) {
    return this.#given.get(id) ?? 0;
  }
}

// The stylesheet's colours as a canvas takes them.
export function inks() {
  const probe = document.createElement("i");
  document.body.append(probe);
  const read = (value) => {
    probe.style.color = `var(--${value})`;
    return getComputedStyle(probe).color;
  };
  const found = Object.fromEntries(["ink", "free", "outline", "accent", "panel"].map((name) => [name, read(name)]));
  found.sequences = Array.from({ length: COLOURS }, (_, colour) => {
    probe.className = `c${colour}`;
    return read("c");
  });
  probe.remove();
  return found;
}
