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

const SHORT = 24; // letters

/** A table. A column without any text is left out. */
export function table(caption, head, rows) {
  const some = (_, column) => rows.some((row) => textOf(row[column]));
  const headings = html("tr", {}, ...head.filter(some).map((each) => html("th", { scope: "col" }, each)));
  const lines = rows.map((row) => html("tr", {}, ...row.filter(some).map(cellOf)));
  return html("div", { class: "table" }, html("table", {}, html("caption", {}, caption), html("thead", {}, headings), html("tbody", {}, ...lines)));
}

const textOf = (content) => (content instanceof Node ? content.textContent : `${content}`);

/** A cell: a short text, such as ids or a time, stays in one line. */
function cellOf(content) {
  const text = textOf(content);
  return html("td", text.length <= SHORT ? { class: "short" } : {}, text ? content : "-");
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
