// The page: asks for the token, then follows the engine until told to pause. Everything else is in a module of its own:
// token → source → state, view (numbers, blockmap, sequences).

import { byId, write } from "./elements.js";
import { Source } from "./source.js";
import { kind, lost, standing } from "./state.js";
import { theme } from "./theme.js";
import { canBeSent, forget, keep, kept, takeFromAddress } from "./token.js";
import { View } from "./view.js";

let source = null, view = null, newest = null, heard = null, said = "", told = null;

takeFromAddress();
window.addEventListener("hashchange", () => {
  takeFromAddress();
  open();
});
theme(byId("theme"), () => view?.recolour());

byId("gate").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = byId("token").value.trim();
  if (!canBeSent(token)) {
    write(byId("gate-error"), "A token has letters, digits and signs of the keyboard only, and no blanks.");
    return;
  }
  keep(token);
  byId("token").value = "";
  open();
});

byId("leave").addEventListener("click", () => {
  forget();
  ask("");
});

byId("pause").addEventListener("click", () => {
  if (!source) return;
  const paused = byId("pause").getAttribute("aria-pressed") !== "true";
  setPaused(paused);
  source.paused = paused;
  if (told) stand(told);
});

document.querySelector("details").addEventListener("toggle", () => {
  if (newest) view.show(newest);
});

open();

// Begin to look, or ask for the token where there is none.
function open() {
  source?.stop();
  source = null;
  const token = kept();
  if (!token) {
    ask("");
    return;
  }
  setPaused(false);
  source = new Source(token, {
    answer,
    refused() {
      forget();
      ask("The server refused that token.");
    },
    lost() {
      stand(lost(heard));
    },
  });
}

function answer(body) {
  [newest, heard] = [body, new Date()];
  byId("gate").hidden = true;
  byId("leave").hidden = false;
  byId("view").hidden = false;
  write(byId("gate-error"), "");
  write(byId("model"), body.server.model);
  write(byId("version"), `Pagemill ${body.server.version}`);
  document.title = `${body.server.model} · Pagemill`;
  view ??= new View();
  view.show(body);
  stand(standing(body));
}

function ask(why) {
  source?.stop();
  [source, newest, heard, told] = [null, null, null, null];
  setPaused(false);
  byId("view").hidden = true;
  byId("leave").hidden = true;
  byId("gate").hidden = false;
  write(byId("gate-error"), why);
  badge("locked", "Locked");
  notice("locked", "");
  byId("token").focus();
}

// The badge and the notice count along; what is spoken does not.
function stand(how) {
  told = how;
  const paused = byId("pause").getAttribute("aria-pressed") === "true";
  badge(how.state, paused ? `Paused · ${how.word}` : how.word);
  document.body.classList.toggle("old", how.state === "lost" || paused);
  if (paused) notice("paused", `Paused: this is how it stood at ${heard ? heard.toLocaleTimeString() : "no time yet"}.`);
  else notice(kind(how), how.sentence);
}

function badge(state, word) {
  byId("state").dataset.state = state;
  write(byId("state-word"), word);
}

function notice(what, sentence) {
  write(byId("notice"), sentence);
  if (what === said) return;
  said = what;
  write(byId("spoken"), sentence || byId("state-word").textContent);
}

function setPaused(paused) {
  byId("pause").setAttribute("aria-pressed", String(paused));
  write(byId("pause"), paused ? "Resume" : "Pause");
  document.body.classList.toggle("old", paused);
}
