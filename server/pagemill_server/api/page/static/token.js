// The management token: from the address (#token=…, which `pagemill up` prints) or from the form, kept for this tab only. It is
// taken out of the address at once, so that it is in no bookmark, history or screen shot.

const KEY = "pagemill-token";

export function takeFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  keep(given);
  history.replaceState(null, "", location.pathname + location.search);
}

export const kept = () => sessionStorage.getItem(KEY);
export const keep = (token) => sessionStorage.setItem(KEY, token);
export const forget = () => sessionStorage.removeItem(KEY);

// A header carries no others; asking with them would fail without a word.
export const canBeSent = (token) => /^[\x21-\x7e]+$/.test(token);
