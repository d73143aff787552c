// Block numbers as /debug/blocks tells them: "3-5,9,8-6" are runs, up or down, in their order. Pure.

export function parse(text) {
  const blocks = [];
  for (const run of text ? text.split(",") : []) {
    const [first, last = first] = run.split("-").map(Number);
    const step = last < first ? -1 : 1;
    for (let block = first; block !== last + step; block += step) blocks.push(block);
  }
  return blocks;
}
