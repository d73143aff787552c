// The lists of those that run and those that wait: a line each, kept while its sequence is there, so that focus stays where it is.

import { attribute, element, write } from "./elements.js";
import { age, whole } from "./format.js";

export class SequenceList {
  #list; #title; #line; #actions;
  #lines = new Map(); // by sequence id

  // `line(sequence)` makes one: {node, update}. `actions` hears of `point`er, `focus` and a press (`pick`), and of lines `gone`.
  constructor(list, title, line, actions) {
    [this.#list, this.#title, this.#line, this.#actions] = [list, title, line, actions];
  }

  show(sequences, palette) {
    const present = new Set(sequences.map(({ id }) => id));
    for (const [id, line] of this.#lines) if (!present.has(id)) this.#remove(id, line);
    let before = null;
    for (const sequence of sequences) {
      let line = this.#lines.get(sequence.id);
      if (!line) this.#lines.set(sequence.id, (line = this.#make(sequence)));
      line.update(sequence, palette);
      const place = before ? before.nextSibling : this.#list.firstChild;
      if (line.node !== place) this.#list.insertBefore(line.node, place);
      before = line.node;
    }
  }

  pick(picked) {
    for (const [id, { node }] of this.#lines) {
      node.classList.toggle("picked", id === picked);
      const button = node.querySelector(".pick");
      if (button) attribute(button, "aria-pressed", String(id === picked));
    }
  }

  #make(sequence) {
    const line = this.#line(sequence), { id } = sequence, { node } = line;
    node.addEventListener("pointerenter", () => this.#actions.point(id));
    node.addEventListener("pointerleave", () => this.#actions.point(null));
    node.addEventListener("focusin", () => this.#actions.focus(id));
    node.addEventListener("focusout", () => this.#actions.focus(null));
    node.querySelector("button.pick")?.addEventListener("click", () => this.#actions.pick(id));
    return line;
  }

  // Who stood on the line that goes stands on its neighbour then.
  #remove(id, { node }) {
    const focused = node.contains(document.activeElement);
    const neighbour = (node.nextElementSibling ?? node.previousElementSibling)?.querySelector("button");
    this.#lines.delete(id);
    node.remove();
    this.#actions.gone(id);
    if (focused) (neighbour ?? this.#title).focus();
  }
}

export function runningLine(sequence) {
  const swatch = element("span", "swatch");
  const button = element("button", "pick", swatch, `#${sequence.id}`);
  button.type = "button";
  const who = whoIs(sequence), prompt = bar("Prompt"), output = bar("Output"), old = element("span", "age");
  const node = element("li", "", button, who.node, prompt.node, output.node, old);
  attribute(button, "aria-label", `Pick out sequence ${sequence.id}`);
  attribute(button, "aria-pressed", "false");

  function update(now, palette) {
    node.className = node.classList.contains("picked") ? "picked" : "";
    node.classList.add(`c${palette.of(now.id)}`);
    const done = Math.min(now.computed_tokens, now.prompt_tokens);
    who.update(now);
    prompt.update(now.prompt_tokens, done);
    output.update(now.max_tokens, now.output_tokens);
    write(old, age(now.age_seconds));
    attribute(old, "title", "since it came");
  }
  return { node, update };
}

export function waitingLine(sequence) {
  const number = element("span", "id", `#${sequence.id}`);
  const who = whoIs(sequence), wants = element("span", "amount wants"), old = element("span", "age");
  const node = element("li", "", number, who.node, wants, old);

  function update(now) {
    who.update(now);
    const said = now.output_tokens ? `, ${whole(now.output_tokens)} of output kept` : "";
    write(wants, `${whole(now.prompt_tokens)} prompt tokens${said}`);
    write(old, age(now.age_seconds));
    attribute(old, "title", "since it came");
  }
  return { node, update };
}

function whoIs(sequence) {
  const request = element("span", "id", sequence.index ? `${sequence.request} · ${sequence.index}` : sequence.request);
  request.title = sequence.request;
  const note = element("span", "note");
  return { node: element("span", "who", request, note), update: (now) => write(note, notes(now).join(" · ")) };
}

function notes(now) {
  const found = [];
  if (now.client) found.push(now.client);
  if (now.priority) found.push(`priority ${now.priority}`);
  if (now.cached_tokens) found.push(`${whole(now.cached_tokens)} cached`);
  if (now.state === "fetching") found.push("fetching blocks");
  if (now.preemptions) found.push(now.preemptions === 1 ? "preempted once" : `preempted ${now.preemptions} times`);
  return found;
}

function bar(label) {
  const progress = element("progress"), amount = element("span", "amount");
  attribute(progress, "aria-label", label);
  const name = document.createTextNode(`${label} `), done = element("b"), rest = document.createTextNode("");
  amount.append(name, done, rest);

  function update(of, value) {
    progress.max = Math.max(1, of);
    progress.value = of ? value : 0;
    write(done, whole(value));
    const text = ` / ${whole(of)}`;
    if (rest.data !== text) rest.data = text;
  }
  return { node: element("div", "bar", progress, amount), update };
}
