// Light or dark: as the system says, or as the button says. `changed` is called when the colours are others.

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const KEY = "pagemill-theme";

export function theme(button, changed) {
  let chosen = localStorage.getItem(KEY);
  if (!(chosen in NEXT)) chosen = "auto";

  function apply() {
    if (chosen === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    button.textContent = `Theme: ${chosen}`;
    changed();
  }

  button.addEventListener("click", () => {
    chosen = NEXT[chosen];
    localStorage.setItem(KEY, chosen);
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  apply();
}
