// Asks /debug/blocks again and again, one question at a time, and says what came of each: an answer, a refusal of the token, or
// nobody there. Rests while the page is hidden or paused.

const EVERY = 1000; // ms between an answer and the next question
const PATIENCE = 6000; // ms for one answer
const SLOWEST = 5000; // ms between questions to who does not answer

export class Source {
  #token; #on; #timer = null; #failures = 0; #paused = false; #asking = null;

  // `on` has answer(body), refused() and lost(milliseconds until the next try).
  constructor(token, on) {
    [this.#token, this.#on] = [token, on];
    document.addEventListener("visibilitychange", this.#visible);
    this.#ask();
  }

  set paused(value) {
    this.#paused = value;
    if (value) this.#rest();
    else this.#ask();
  }

  stop() {
    document.removeEventListener("visibilitychange", this.#visible);
    this.#paused = true;
    this.#rest();
  }

  #visible = () => {
    if (document.hidden) this.#rest();
    else this.#ask();
  };

  #rest() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#asking?.abort();
    this.#asking = null;
  }

  async #ask() {
    if (this.#paused || document.hidden || this.#asking) return;
    clearTimeout(this.#timer);
    const asking = (this.#asking = new AbortController());
    const outcome = await this.#answer(asking);
    if (asking !== this.#asking) return; // rested meanwhile
    this.#asking = null;
    this.#take(outcome);
  }

  async #answer(asking) {
    try {
      const signal = AbortSignal.any([asking.signal, AbortSignal.timeout(PATIENCE)]);
      const headers = { authorization: `Bearer ${this.#token}` };
      const response = await fetch("/debug/blocks", { headers, signal, cache: "no-store", credentials: "omit" });
      if (response.status === 401) return { refused: true };
      return response.ok ? { body: await response.json() } : {};
    } catch {
      return {};
    }
  }

  #take({ refused, body }) {
    if (refused) {
      this.stop();
      this.#on.refused();
      return;
    }
    this.#failures = body ? 0 : this.#failures + 1;
    const wait = Math.min(SLOWEST, EVERY * Math.max(1, this.#failures));
    this.#timer = setTimeout(() => this.#ask(), wait);
    if (body) this.#on.answer(body);
    else this.#on.lost(wait);
  }
}
