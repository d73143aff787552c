// How the server stands, in one word for the badge and one sentence for who has to act. Pure.

import { age } from "./format.js";

const LOADING = { Starting: "Starting", Downloading: "Downloading", LoadingWeights: "Loading weights", Warmup: "Warming up" };

// {state, word, sentence}: `state` is what page.css knows, `sentence` is empty when all is well.
export function standing(answer) {
  const { server, age_seconds: old } = answer;
  if (server.dead) return { state: "ended", word: "Engine ended", sentence: `${capital(server.trouble)}. The server will end, and whoever started it starts it again.` };
  if (server.trouble) return { state: "stalled", word: "Stalled", sentence: `${capital(server.trouble)}.` };
  if (server.phase === "Draining") {
    const left = server.in_flight === 1 ? "1 request is" : `${server.in_flight} requests are`;
    const news = server.refusing ? "new requests are refused" : "it is out of the Service, and still answers what comes";
    return { state: "draining", word: "Draining", sentence: `The server is draining: ${news}; ${left} in flight.` };
  }
  if (server.phase in LOADING) return { state: "loading", word: `${LOADING[server.phase]} ${server.percent}%`, sentence: "The model is loading; the engine shows itself when it is there." };
  if (old > 3) return { state: "serving", word: "Serving", sentence: `The engine is in a long step: this is how it stood ${age(old)} ago.` };
  return { state: "serving", word: "Serving", sentence: "" };
}

export function lost(since) {
  const when = since ? `Last heard of at ${since.toLocaleTimeString()}; what is shown is from then. ` : "";
  return { state: "lost", word: "Not answering", sentence: `The server does not answer. ${when}This page goes on asking.` };
}

// What has to be another for a screen reader to be told: the part of a standing that does not count along.
export const kind = ({ state, sentence }) => `${state}${sentence ? "!" : ""}`;

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
