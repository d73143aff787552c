// The answers of the last minutes, and the rates that are differences of their counters. Pure; knows no time but the server's.

const KEPT = 120; // answers: two minutes of them, one a second
const SMOOTHED = 2.5; // seconds that a rate looks back, so that one step more or less does not make it jump
const WINDOW = 60; // seconds of what is counted "in the last minute"

export class History {
  #samples = [];

  add(answer) {
    const last = this.#samples.at(-1);
    if (!answer.engine || (last && answer.at === last.at)) return;
    // Counters only rise: lower ones are another process's.
    if (last && (answer.at < last.at || answer.engine.sequences_total < last.engine.sequences_total)) this.#samples = [];
    this.#samples.push({ ...pick(answer), ...this.#rates(answer) });
    if (this.#samples.length > KEPT) this.#samples.shift();
  }

  get newest() {
    return this.#samples.at(-1);
  }

  // What one of the values was, oldest first.
  series(name) {
    return this.#samples.map((sample) => sample[name]);
  }

  // How much a counter rose in the last minute, or since this page looks.
  rise(counter) {
    const newest = this.newest;
    if (!newest) return 0;
    const first = this.#samples.find((sample) => newest.at - sample.at <= WINDOW);
    return newest.engine[counter] - first.engine[counter];
  }

  #rates(answer) {
    const before = this.#samples.findLast((sample) => answer.at - sample.at >= SMOOTHED) ?? this.#samples[0];
    if (!before) return { output: null, prompt: null };
    const rate = (counter) => (answer.engine[counter] - before.engine[counter]) / (answer.at - before.at);
    return { output: rate("generation_tokens_total"), prompt: rate("prompt_tokens_total") };
  }
}

function pick(answer) {
  const { engine, latency } = answer;
  return {
    at: answer.at,
    engine,
    firstToken: latency.time_to_first_token?.p50 ?? null,
    perToken: latency.inter_token?.p50 ?? null,
    usage: engine.kv_cache_usage,
    preemptions: engine.preemptions_total,
    running: engine.running,
    waiting: engine.waiting,
    hitRate: engine.prefix_cache_queries_total ? engine.prefix_cache_hits_total / engine.prefix_cache_queries_total : null,
  };
}
