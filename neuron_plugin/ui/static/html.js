// Elements of the page, and how they are brought up to date without taking away what the user has chosen in them.

export function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const link = (kind, name, text = name) => html("a", { href: hashOf(kind, name) }, text);
/** The address of a node or of a pod on this page. */
export const hashOf = (kind, name) => `#${kind}/${encodeURIComponent(name)}`;

export function table(caption, head, rows) {
  const headings = html("tr", {}, ...head.map((each) => html("th", { scope: "col" }, each)));
  const lines = rows.map((row) => html("tr", {}, ...row.map((cell) => html("td", {}, cell instanceof Node ? cell : `${cell}` || "-"))));
  return html("table", {}, html("caption", {}, caption), html("thead", {}, headings), html("tbody", {}, ...lines));
}

const FOCUSABLE = "a, button, summary, [tabindex]";

/** Give `parent` these children. Those that are there already stay, with their focus, scroll position and selection. */
export function put(parent, ...children) {
  children.forEach((child, place) => {
    const known = parent.children[place];
    if (!known) parent.append(child);
    else if (known !== child && !known.isEqualNode(child)) {
      const focused = [...known.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
      known.replaceWith(child);
      if (focused >= 0) child.querySelectorAll(FOCUSABLE)[focused]?.focus({ preventScroll: true });
    }
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}
