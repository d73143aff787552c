// Elements by the short way. Text is always text: nothing that a client has chosen ever becomes markup.

export const byId = (id) => document.getElementById(id);

export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

// Untouched where it says that already, so that selections and readers are left alone.
export function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export function attribute(target, name, value) {
  if (target.getAttribute(name) !== value) target.setAttribute(name, value);
}
