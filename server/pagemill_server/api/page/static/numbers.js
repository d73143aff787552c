// The row of figures: what each is called, where it comes from, and its line over the last two minutes.

import { element, write } from "./elements.js";
import { percent, perSecond, seconds, whole, words } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const NONE = ["–", ""];
const FEWEST = 30; // points that a line is as wide as, until there are more

// Each: its name, the figure, the words below, and the series that is drawn.
const FIGURES = [
  {
    name: "Output tokens",
    value: ({ newest }) => orNone(newest.output, perSecond),
    below: ({ newest }) => (newest.prompt === null ? "" : `${words(perSecond(newest.prompt))} of prompts`),
    series: "output",
  },
  {
    name: "Time to first token",
    value: (_, { latency }) => orNone(latency.time_to_first_token?.p50, seconds),
    below: (_, { latency }) => quantiles(latency.time_to_first_token),
    series: "firstToken",
  },
  {
    name: "Time per token",
    value: (_, { latency }) => orNone(latency.inter_token?.p50, seconds),
    below: (_, { latency }) => quantiles(latency.inter_token),
    series: "perToken",
  },
  {
    name: "KV cache held",
    value: (_, { engine, blocks }) => (blocks ? percent(engine.kv_cache_usage) : NONE),
    below: (_, { blocks }) => (blocks ? `${whole(blocks.held)} of ${whole(blocks.total)} blocks` : "this engine has none"),
    series: "usage",
    top: 1,
  },
  {
    name: "Prefix cache hits",
    value: (history) => orNone(recentHits(history), percent),
    below: ({ newest }) => (newest.hitRate === null ? "of the last minute" : `${words(percent(newest.hitRate))} since the start`),
    series: "hitRate",
    top: 1,
  },
  {
    name: "Preemptions",
    value: (history) => [whole(history.rise("preemptions_total")), "last min"],
    below: (_, { engine }) => `${whole(engine.preemptions_total)} since the start`,
    series: "preemptions",
  },
  {
    name: "Running",
    value: (_, { engine }) => [whole(engine.running), `of ${whole(engine.max_num_seqs)}`],
    below: (_, { engine }) => `${whole(engine.step_tokens)} tokens a step`,
    series: "running",
  },
  {
    name: "Waiting",
    value: (_, { engine }) => [whole(engine.waiting), ""],
    below: (_, { engine }) => (engine.waiting ? `≈ ${words(seconds(engine.queue_seconds))} to wait` : `policy ${engine.policy}`),
    series: "waiting",
  },
];

export class Numbers {
  #tiles;

  constructor(list) {
    this.#tiles = FIGURES.map((figure) => tile(figure));
    list.append(...this.#tiles.map(({ node }) => node));
  }

  show(history, answer) {
    const there = answer.engine && history.newest;
    for (const { figure, write: put } of this.#tiles) {
      if (there) put(figure.value(history, answer), figure.below(history, answer), history.series(figure.series));
      else put(NONE, "", []);
    }
  }
}

function tile(figure) {
  const value = element("dd", "value"), number = element("span"), unit = element("span", "unit"), below = element("dd", "sub");
  value.append(number, unit);
  const spark = drawing();
  const picture = element("dd", "", spark.node);
  const node = element("div", "", element("dt", "", figure.name), value, below, picture);
  picture.setAttribute("aria-hidden", "true");

  function put([text, suffix], words, series) {
    write(number, text);
    write(unit, suffix);
    write(below, words);
    below.title = words;
    spark.draw(series, figure.top);
  }
  return { figure, node, write: put };
}

function drawing() {
  const node = document.createElementNS(SVG, "svg");
  const base = document.createElementNS(SVG, "path"), line = document.createElementNS(SVG, "path");
  node.setAttribute("viewBox", "0 0 119 24");
  node.setAttribute("preserveAspectRatio", "none");
  base.setAttribute("class", "base");
  base.setAttribute("d", "M0 24H119");
  node.append(base, line);
  return { node, draw: (series, top) => line.setAttribute("d", sparkline(series, top)) };
}

// The newest at the right; a gap where there was nothing to measure. `top`: what the upper edge means, else the greatest.
export function sparkline(series, top) {
  const greatest = top ?? Math.max(...series.filter((value) => value !== null), 0);
  const steps = Math.max(FEWEST, series.length) - 1; // from the left edge to the right
  const first = steps + 1 - series.length;
  let path = "", pen = false;
  series.forEach((value, index) => {
    if (value !== null) {
      const y = greatest ? 23 - 22 * Math.min(1, value / greatest) : 23;
      path += `${pen ? "L" : "M"}${((119 * (first + index)) / steps).toFixed(1)} ${y.toFixed(1)}`;
    }
    pen = value !== null;
  });
  return path;
}

function orNone(value, format) {
  return value === null || value === undefined ? NONE : format(value);
}

function quantiles(found) {
  return found ? `p95 ${words(seconds(found.p95))}` : "none in the last min";
}

function recentHits(history) {
  const asked = history.rise("prefix_cache_queries_total");
  return asked ? history.rise("prefix_cache_hits_total") / asked : null;
}
